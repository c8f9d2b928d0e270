#!/usr/bin/env bash
# The last step of the build stage: collects in OUT what the image needs at run time. The final stage
# copies OUT to / of a bare Debian, so nothing that only the build needs reaches the image.
#
#   collect.sh OUT
#
# OUT/opt/bayescaffe is laid out like a clone after `make build`. packages.txt in it lists the Debian
# packages that the programs link against; shared libraries of no package (CUDA's) are copied.
# licenses/ in it holds the notices of what the image contains beyond Debian's packages, which have
# theirs in /usr/share/doc, and Python's, which have theirs in .venv.
set -euo pipefail
out=$1
top=${BAYESCAFFE_TOP:-/opt/bayescaffe}
to=$out$top
cd "$top"

mkdir -p "$to"/{build/caffe/tools,build/caffe-src,docker,licenses,scripts}
cp -r LICENSE .venv models examples "$to"
cp scripts/demo.sh "$to/scripts"
cp docker/entrypoint.sh "$to/docker"
cp build/caffe/tools/{caffe,convert_imageset,compute_image_mean} "$to/build/caffe/tools"
cp build/caffe-src/LICENSE "$to/licenses/caffe"
# Only the GPU image has the tests, and with them Google Test. Its license is the header's first block.
if [ -e build/bayes_tests ]; then
  cp build/bayes_tests "$to/build/caffe/tools"
  sed -n '/^\/\/ Author/q; s,^// \?,,p' build/caffe-src/src/gtest/gtest.h > "$to/licenses/googletest"
fi
for notices in .cuda/*/licenses "${CUDA_HOME:-/usr/local/cuda}/licenses"; do
  [ ! -d "$notices" ] || cp -r "$notices/." "$to/licenses/cuda"
done
cp -r build/caffe/lib "$to/build/caffe"
# Our files and _caffe.so are links in the source tree.
cp -rL build/caffe-src/python "$to/build/caffe-src"
find "$to/build" \( -name '*.a' -o -name '*.cpp' -o -path '*/caffe/test' \) -prune -exec rm -r {} +
ln -sf ../../../caffe/lib/_caffe.so "$to/build/caffe-src/python/caffe/_caffe.so"
.venv/bin/python -m compileall -q "$to/build/caffe-src/python"

echo python3 > packages.txt
echo ca-certificates >> packages.txt
ldd build/caffe/tools/caffe build/caffe/lib/_caffe.so > linked.txt
# Programs that link against MPI are started by mpirun.
! grep -q libmpi linked.txt || echo openmpi-bin >> packages.txt
if grep 'not found' linked.txt; then
  echo "collect: the libraries above are missing; the programs link against them" >&2
  exit 1
fi
awk '$3 ~ "^/" { print $3 }' linked.txt | sort -u | while read -r library; do
  # By file name, because Debian 12 still lists files under /lib, a link to /usr/lib.
  if package=$(dpkg-query -S "*/$(basename "$(realpath "$library")")" 2> /dev/null); then
    echo "${package%%:*}" >> packages.txt
  elif [[ $library != "$top"/build/* ]]; then
    [ -n "$(ls -A "$to/licenses/cuda" 2> /dev/null)" ] || {
      echo "collect: $library belongs to no Debian package, and there is no license for it" >&2
      exit 1
    }
    mkdir -p "$out$(dirname "$library")"
    cp -L "$library" "$out$library"
  fi
done
sort -u packages.txt > "$to/packages.txt"
