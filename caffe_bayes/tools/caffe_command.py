#!python
"""The command `caffe` of a wheel: runs Caffe's tool inside of this Python, whose
symbols libcaffe needs."""

import ctypes
import importlib.util
import os
import signal
import sys

for number in (signal.SIGINT, signal.SIGPIPE):
    signal.signal(number, signal.SIG_DFL)  # Python's handlers would wait for the tool's end
# Found, not imported: pycaffe would set up the log its own way.
folder = os.path.dirname(importlib.util.find_spec("caffe").origin)
# PyDLL keeps Python's lock, which Python layers need.
tool = ctypes.PyDLL(os.path.join(folder, "_tool.so"))
arguments = [os.fsencode(argument) for argument in ("caffe", *sys.argv[1:])]
argv = (ctypes.c_char_p * (len(arguments) + 1))(*arguments)
sys.exit(tool.main(len(arguments), argv))
