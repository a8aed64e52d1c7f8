#!/bin/sh
# Takes the pieces that lie beside it; with the last of them, installs them and runs the check.
#
#     [KEPT=/tmp/gpu-check] [OUT=$KEPT/out] [MINUTES=28] sh there.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kept=${KEPT:-/tmp/gpu-check}
mkdir -p "$kept/pieces"
cp "$here"/gpu-check.tar.* "$here/pieces.sha256" "$kept/pieces/"
cd "$kept/pieces"
if ! sha256sum --check --status pieces.sha256 2> /dev/null; then
  echo "more pieces are to come"
  exit 0
fi
cd "$kept"
cat pieces/gpu-check.tar.* | tar -x
python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$kept/site" "$kept"/wheels/*.whl
cd detcli
PYTHONPATH="$PWD:$PWD/tests:$kept/site" exec python3 -m benchmarks.gpu --out "${OUT:-$kept/out}" \
  --minutes "${MINUTES:-28}" --model "$kept/model.onnx" --model-fp16 "$kept/model-fp16.onnx" \
  --images "$kept/pictures" --provider-options
