# Shared set-up of the scripts in ci/: source it, do not run it.
# Everything lives in the checkout (.venv*, .cache); nothing global is touched, and a second run reuses it all.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

# Compiled code, test and tool caches of CI runs stay in the checkout, so that a run neither needs nor leaves state
# in a home directory.
export NUMBA_CACHE_DIR="$ROOT/.cache/numba"
export SDPAKIT_CACHE_DIR="$ROOT/.cache/sdpakit"
export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$ROOT/.cache"

say() { printf '%s\n' "ci: $*"; }

# python_works PYTHON MINOR: true if PYTHON starts and is CPython 3.MINOR (a name on PATH may be a shim for nothing).
python_works() {
  [ "$("$1" -c 'import sys; print(sys.implementation.name, *sys.version_info[:2])' 2>/dev/null)" = "cpython 3 $2" ]
}

# find_python MINOR: print a working interpreter of version 3.MINOR, or fail.
find_python() {
  local minor=$1 candidate
  for candidate in \
    "python3.$minor" \
    "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python \
    "$HOME/.pyenv/versions/3.$minor".*/bin/python \
    "/usr/bin/python3.$minor" "/usr/local/bin/python3.$minor" "/opt/python3.$minor/bin/python3" \
    python3 python; do
    if python_works "$candidate" "$minor"; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

# make_venv PYTHON DIR: an environment with pip, also where the distribution left ensurepip out.
make_venv() {
  local python=$1 dir=$2
  if "$python" -m venv --clear "$dir" >/dev/null 2>&1; then return 0; fi
  "$python" -m venv --clear --without-pip "$dir" || return 1
  "$python" -m pip --python "$dir/bin/python" install --quiet pip
}

# ensure_env MINOR DIR [EXTRAS]: DIR is an environment of Python 3.MINOR with this checkout (editable) and the extras.
# The stamp says what was installed from which pyproject.toml; where that is still so, nothing is done.
ensure_env() {
  local minor=$1 dir=$2 extras=${3:-} python made
  made="3.$minor $ROOT $(cksum <pyproject.toml)"
  if python_works "$dir/bin/python" "$minor" && grep -qsxF "$made [$extras]" "$dir/.stamp"; then return 0; fi
  if ! python=$(find_python "$minor"); then
    say "Python 3.$minor was not found (looked on PATH, in pyenv, /usr and /opt)"
    return 1
  fi
  say "setting up $(basename "$dir") with $python${extras:+ and the extras $extras}"
  if ! python_works "$dir/bin/python" "$minor"; then make_venv "$python" "$dir" || return 1; fi
  # Byte code is made of what is imported, when it is: compiling all of it takes longer than all else here.
  "$dir/bin/python" -m pip install --quiet --no-compile --editable ".${extras:+[$extras]}" || return 1
  printf '%s\n' "$made []" "$made [$extras]" >"$dir/.stamp"
}

# main_env [EXTRAS]: make or reuse .venv, the environment that ci/demo, ci/lint and ci/test share.
main_env() {
  ensure_env 11 "$ROOT/.venv" "${1:-}" || {
    say "the scripts in ci/ need Python 3.11 with pip"
    exit 1
  }
}
