#!/usr/bin/env bash
# lm-evaluation-harness against `shoal serve` on the small trained models: tools/lm_eval/run.sh BINARY [run.py's options]
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=${SHOAL_CACHE:-$HOME/.cache/shoal}/lm-eval-$(sha256sum "$folder/requirements.txt" | cut -c1-12)
if [ ! -f "$environment/complete" ]; then
  rm -rf "$environment"
  python=/usr/bin/python3
  [ -x "$python" ] || python=python3
  "$python" -m venv "$environment"
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$folder/requirements.txt"
  touch "$environment/complete"
fi
# Nothing is fetched: models, tokenizers and data are files of this project.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$environment/bin/python" "$folder/run.py" "$@"
