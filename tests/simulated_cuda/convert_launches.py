#!/usr/bin/env python3
"""Turn the launches of a CUDA source into C++ for the simulated device.

    convert_launches.py SOURCE RESULT

`kernel<T><<<grid, block>>>(n, x)` becomes a macro of device_code.hpp,
`SIMULATED_CUDA_LAUNCH((kernel<T>), (grid, block))(n, x)`. All else stays as it is, and in its line:
errors and debuggers name SOURCE. RESULT is not touched if it would not change.
"""

import re
import sys
from pathlib import Path

# The expression that names a kernel: identifiers, ## and ::, then perhaps template arguments; then
# there may be a comment before the launch.
KERNEL = re.compile(r"([\w:#]+(?:\s*<[^<>;(){}]*>)?)((?:\s|//[^\n]*\n)*)$")


def convert(text: str) -> str:
    done = []
    position = 0
    while (start := text.find("<<<", position)) >= 0:
        line = text.count("\n", 0, start) + 1
        kernel = KERNEL.search(text, position, start)
        end = text.find(">>>", start)
        if not kernel or end < 0:
            raise ValueError(f"line {line}: no launch of a kernel around '<<<'")
        done.append(text[position : kernel.start()])
        configuration = text[start + 3 : end]
        done.append(f"SIMULATED_CUDA_LAUNCH(({kernel[1]}),{kernel[2]}({configuration}))")
        position = end + 3
    done.append(text[position:])
    return "".join(done)


def main() -> None:
    source, result = map(Path, sys.argv[1:])
    try:
        converted = convert(source.read_text())
    except ValueError as error:
        sys.exit(f"convert_launches.py: {source}: {error}")
    include = '#include "device_code.hpp"\n' if source.suffix == ".cu" else ""
    converted = f'{include}#line 1 "{source}"\n{converted}'
    if not result.exists() or result.read_text() != converted:
        result.parent.mkdir(parents=True, exist_ok=True)
        result.write_text(converted)


if __name__ == "__main__":
    main()
