"""Which of sbatch's options Rota honours, which it ignores with a note, and which it must refuse."""

from __future__ import annotations

from rota.cli.slurm.options import Option, Takes

HELP = """\
usage: sbatch [OPTIONS] script [args...]     or     sbatch [OPTIONS] --wrap 'command line'     or     sbatch <script

  -J, --job-name=NAME                -o, -e, -i FILE      output, error, input; %j %a %A %x %u %N
  -G, --gpus=[TYPE:]N                -D, --chdir=DIR      where to run
      --gres=gpu[:TYPE]:N            --export=...         ALL, NONE, NAME, NAME=VALUE
      --gpus-per-node, --gpus-per-task                -H, --hold           submit, do not start
  -N, --nodes=N   -n, --ntasks=N     -d, --dependency=afterok:ID:ID,afterany:ID,afternotok:ID,after:ID
  -c, --cpus-per-task=N              -a, --array=0-9%2    one job for each index, two at a time
  --mem, --mem-per-cpu, --mem-per-gpu=16G   -W, --wait           wait for the end; exit as the job did
  -t, --time=D-H:M:S                 --parsable           print only the id
  -p, -A                             kept and shown       --test-only          when would it start?
  --requeue                          may be stopped for others, and is run again; --no-requeue: no second attempt
  --signal=[B:]USR2@300              sent so many seconds before the time limit, and with --requeue on being stopped
  --reservation=ID|NAME              use the GPUs it keeps, in its time (rota reserve)
  --open-mode=append|truncate

Lines of the script that begin with #SBATCH hold options too; the command line wins."""

_ONE = "Rota has one queue"
_NODE = "Rota chooses the nodes"
_MAIL = "set up notifications on the server"
TABLE = (
    Option("help", "h", Takes.NOTHING),
    Option("version", "V", Takes.NOTHING),
    Option("job-name", "J"),
    Option("gpus", "G"),
    Option("gres"),
    Option("gpus-per-node"),
    Option("gpus-per-task"),
    Option("nodes", "N"),
    Option("ntasks", "n"),
    Option("ntasks-per-node"),
    Option("cpus-per-task", "c"),
    Option("mem"),
    Option("mem-per-cpu"),
    Option("mem-per-gpu"),
    Option("time", "t"),
    Option("reservation"),
    Option("partition", "p"),
    Option("account", "A"),
    Option("dependency", "d"),
    Option("array", "a"),
    Option("output", "o"),
    Option("error", "e"),
    Option("input", "i"),
    Option("open-mode"),
    Option("chdir", "D"),
    Option("export"),
    Option("wrap"),
    Option("parsable", "", Takes.NOTHING),
    Option("wait", "W", Takes.NOTHING),
    Option("test-only", "", Takes.NOTHING),
    Option("hold", "H", Takes.NOTHING),
    Option("requeue", "", Takes.NOTHING),
    Option("no-requeue", "", Takes.NOTHING),
    Option("signal"),
    Option("quiet", "Q", Takes.NOTHING),
    Option("verbose", "v", Takes.NOTHING),
    # harmless to leave out
    Option("qos", "q", note=_ONE),
    Option("nice", "", Takes.PERHAPS, note="set a priority with: rota priority"),
    Option("priority", note="set a priority with: rota priority"),
    Option("comment", note="there is no place for it"),
    Option("exclusive", "", Takes.PERHAPS, note="a GPU is never shared"),
    Option("oversubscribe", "s", Takes.NOTHING, note="a GPU is never shared"),
    Option("mail-type", note=_MAIL),
    Option("mail-user", note=_MAIL),
    Option("get-user-env", "", Takes.PERHAPS, note="the environment of the submit is used"),
    Option("hint", note="CPUs are not bound"),
    Option("threads-per-core", note="CPUs are not bound"),
    Option("cpus-per-gpu", note="use -c"),
    Option("mem-bind", note="CPUs are not bound"),
    Option("gpu-bind", note="a job sees exactly its GPUs"),
    Option("distribution", "m", note="there is one task for each node"),
    Option("no-kill", "k", Takes.PERHAPS, note="a job ends when one of its nodes is lost"),
    Option("profile", note="usage is recorded anyway"),
    Option("propagate", "", Takes.PERHAPS, note="limits of this shell do not travel"),
    Option("spread-job", "", Takes.NOTHING, note=_NODE),
    Option("use-min-nodes", "", Takes.NOTHING, note=_NODE),
    Option("switches", note=_NODE),
    Option("tmp", note="disk space is not counted"),
    Option("wckey", note="there is no place for it"),
    Option("ignore-pbs", "", Takes.NOTHING, note="only #SBATCH lines are read"),
    # leaving these out would run something else than was asked for
    Option("constraint", "C", refusal="choose a GPU by its type, as in --gres=gpu:a100:2"),
    Option("nodelist", "w", refusal=_NODE),
    Option("exclude", "x", refusal=f"{_NODE}; an admin can take one out: rota nodes drain"),
    Option("nodefile", "F", refusal=_NODE),
    Option("begin", "b", refusal="use --hold, and `rota release ID` at the time"),
    Option("deadline", refusal="use -t to limit how long it may run"),
    Option("licenses", "L", refusal="Rota counts none; limit how many run at a time with --array=...%N"),
    Option("clusters", "M", refusal="set ROTA_URL to choose the server"),
    Option("uid", refusal="jobs are your own"),
    Option("gid", refusal="jobs are your own"),
    Option("bb", refusal="Rota has no burst buffer"),
    Option("bbf", refusal="Rota has no burst buffer"),
    Option("gpus-per-socket", refusal="use --gpus or --gres"),
    Option("ntasks-per-gpu", refusal="use --ntasks"),
)
