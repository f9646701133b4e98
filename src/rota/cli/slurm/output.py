"""Where a batch job's output goes: Slurm's -o, -e and -i with their %-fields.

What is known at the submit is filled in then; the job's id and its node are known only where it runs, so a fixed piece
of shell fills those in. The command and the file names reach it as arguments and are never part of its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# $1 stdin, $2 stdout, $3 stderr ("" = as it is, for stderr: with stdout), $4 1 = append; then the command.
# On several nodes each one runs this with the same files: nobody may truncate what another has written.
WRAPPER = r"""
fill() {
  path= rest=$1
  while :; do
    case $rest in
      *%*) path=$path${rest%%\%*} rest=${rest#*%} ;;
      *) path=$path$rest; return ;;
    esac
    case $rest in
      j*) path=$path$ROTA_JOB_ID rest=${rest#?} ;;
      N*) path=$path$ROTA_NODE rest=${rest#?} ;;
      n*) path=$path$ROTA_NODE_RANK rest=${rest#?} ;;
      %*) path=$path% rest=${rest#?} ;;
      *) path=$path% ;;
    esac
  done
}
fill "$1"; in=$path; fill "$2"; out=$path; fill "$3"; err=$path; append=$4
shift 4
[ "${ROTA_ATTEMPT:-1}" = 1 ] || append=1
[ "${SLURM_NNODES:-1}" = 1 ] || append=1
if [ -n "$in" ]; then exec <"$in" || exit 1; fi
if [ -n "$out" ]; then
  echo "output goes to $out"
  if [ -n "$append" ]; then exec >>"$out" || exit 1; else exec >"$out" || exit 1; fi
  [ -n "$err" ] || exec 2>&1
fi
if [ -n "$err" ]; then
  if [ -n "$append" ]; then exec 2>>"$err" || exit 1; else exec 2>"$err" || exit 1; fi
fi
exec "$@"
"""


def wrap(argv: Sequence[str], stdin: str, stdout: str, stderr: str, *, append: bool) -> tuple[str, ...]:
    """The argv with its files; the same argv where there are none."""
    if not (stdin or stdout or stderr):
        return tuple(argv)
    if stderr == stdout:
        stderr = ""  # opened once, or the two would write over each other
    return ("/bin/sh", "-c", WRAPPER, "sbatch", stdin, stdout, stderr, "1" if append else "", *argv)


def fill(pattern: str, known: Mapping[str, str]) -> str:
    """Put in what is known by its letter, with a width as in %4a; leave %j %N %n %% to where the job runs. In Slurm a
    backslash anywhere takes the % its meaning."""
    if "\\" in pattern:
        return pattern.replace("\\", "").replace("%", "%%")

    def one(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter in known:
            value = known[letter].zfill(int(width)) if width and known[letter].isdigit() else known[letter]
            return value.replace("%", "%%")
        if letter in "jJsNn":
            return {"J": "%j", "s": "batch"}.get(letter, f"%{letter}")
        if letter == "%":
            return "%%"
        return f"%{match[0]}"  # no field of Slurm's: it stands for itself

    return re.sub(r"%([0-9]{0,2})([A-Za-z%])", one, pattern)
