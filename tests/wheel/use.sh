#!/usr/bin/env bash
# What scripts/wheel_test.sh runs as the user of a minimal system, in a folder with the wheel, imports.py and the
# folder lenet of models/.
set -euo pipefail
export PIP_FIND_LINKS=/mnt PIP_DISABLE_PIP_VERSION_CHECK=1 # what WHEELS names
if dpkg-query -W -f '${Package}\n' | grep -E -- '-dev$|^(g\+\+|libboost|libprotobuf|libopenblas|libhdf5)'; then
  echo "use: this system has the packages above, so it proves little" >&2
  exit 1
fi
python3 -m venv empty
find empty ! -type d | sort > before.txt
empty/bin/pip install -q bayescaffe-*.whl
PATH=$PWD/empty/bin:$PATH
empty/bin/pip check
bayescaffe --version
caffe --version | grep -x "caffe version 1.0.0"
bayescaffe data mnist --quiet
mkdir -p models && cp -r lenet models
sed -i 's/^max_iter:.*/max_iter: 200/; s/^snapshot:.*/snapshot: 200/; s/^test_interval:.*/test_interval: 200/' \
  models/lenet/bayes-plain/solver.prototxt
caffe train -solver models/lenet/bayes-plain/solver.prototxt 2>&1 | tail -3
bayescaffe sample models/lenet/bayes-plain/solver.prototxt --passes 50 --images 0-999 --out part.npz --quiet
bayescaffe sample models/lenet/bayes-plain/solver.prototxt --passes 50 --out digits.npz --quiet
bayescaffe analyze digits.npz | head -3
bayescaffe report digits.npz --out report.html
bayescaffe train models/lenet/bayes-plain/solver.prototxt --quiet
empty/bin/python -c 'import caffe, bayescaffe; print(caffe.__file__)'
for shell in bash zsh fish; do [ "$(bayescaffe completion $shell | wc -l)" -gt 50 ]; done
test -s empty/share/man/man1/bayescaffe.1

python3 -m venv beside
beside/bin/pip install -q bayescaffe-*.whl 'torch==2.13.0' 'opencv-python-headless<5'
beside/bin/python imports.py

# Whatever the wheel brought or wrote is gone. Its dependencies are removed as well, to compare all files.
empty/bin/pip list --format=freeze | cut -d= -f1 | grep -vxE 'pip|setuptools' | xargs empty/bin/pip uninstall -q -y
find empty ! -type d | sort > after.txt
diff <(grep -v __pycache__ before.txt) <(grep -v __pycache__ after.txt)
echo "uninstalled: no file is left"
