#!/usr/bin/env bash
# The last step of the build stage: gathers in OUT what the image needs at run time, and nothing that
# only the build needed. OUT is then copied to / of a bare Debian.
#
#   collect.sh OUT
#
# OUT/opt/bayescaffe has the layout of a clone that was built. OUT/opt/bayescaffe/packages.txt names the
# Debian packages that the programs are linked with; shared libraries of no package (CUDA's) are copied.
set -euo pipefail
out=$1
top=/opt/bayescaffe
to=$out$top
cd $top

mkdir -p "$to"/{build/caffe/tools,build/caffe-src,docker,scripts}
cp -r .venv models examples "$to"
cp scripts/demo.sh "$to/scripts"
cp docker/entrypoint.sh "$to/docker"
cp build/caffe/tools/caffe "$to/build/caffe/tools"
# The GPU image brings our tests along.
[ ! -e build/bayes_tests ] || cp build/bayes_tests "$to/build/caffe/tools"
cp -r build/caffe/lib "$to/build/caffe"
# Files of ours and _caffe.so are links in the source tree.
cp -rL build/caffe-src/python "$to/build/caffe-src"
find "$to/build" \( -name '*.a' -o -name '*.cpp' -o -path '*/caffe/test' \) -prune -exec rm -r {} +
ln -sf ../../../caffe/lib/_caffe.so "$to/build/caffe-src/python/caffe/_caffe.so"
.venv/bin/python -m compileall -q "$to/build/caffe-src/python"

echo python3 > packages.txt
echo ca-certificates >> packages.txt
ldd build/caffe/tools/caffe build/caffe/lib/_caffe.so > linked.txt
if grep 'not found' linked.txt; then
  echo "collect: the build is linked with libraries that are not there" >&2
  exit 1
fi
awk '$3 ~ "^/" { print $3 }' linked.txt | sort -u | while read -r library; do
  # By its name: Debian 12 still lists /lib, which is a link to /usr/lib.
  if package=$(dpkg-query -S "*/$(basename "$(realpath "$library")")" 2> /dev/null); then
    echo "${package%%:*}" >> packages.txt
  elif [[ $library != "$top"/build/* ]]; then
    mkdir -p "$out$(dirname "$library")"
    cp -L "$library" "$out$library"
  fi
done
sort -u packages.txt > "$to/packages.txt"
