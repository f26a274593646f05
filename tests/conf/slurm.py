"""
Stand-ins for srun, scontrol and scancel, which run the steps of a job on this machine.

As strict as the commands of Slurm: an unknown option, a host that is not of the job, or another job is refused.
``python slurm.py COMMAND ARGUMENT...`` with the variables that sbatch sets, and STEPS, a folder for the process ids of
running steps.

Source:
    slurm.schedmd.com: srun.html, scancel.html, scontrol.html. srun returns the highest exit code of its tasks, 128 plus
    the number of a signal. scancel sends a signal to the steps, not to the batch script, unless --batch or --full.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path


def main(command: str, arguments: list[str]) -> int:
    return {"srun": srun, "scontrol": scontrol, "scancel": scancel}[command](arguments)


def srun(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("srun", allow_abbrev=False)
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--ntasks", type=int, required=True)
    parser.add_argument("--cpus-per-task", type=int)
    parser.add_argument("--nodelist", required=True, choices=hosts())
    parser.add_argument("--job-name")
    parser.add_argument("--open-mode", choices=["append", "truncate"], default="truncate")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if (options.nodes, options.ntasks) != (1, 1):
        parser.error("this stand-in runs one task on one node")
    with options.output.open("ab" if options.open_mode == "append" else "wb") as output:
        process = subprocess.Popen(options.command, stdout=output, stderr=output, start_new_session=True)
    step = Path(os.environ["STEPS"], str(process.pid))
    step.write_text(options.job_name)
    code = process.wait()
    step.unlink()
    return code if code >= 0 else 128 - code


def scontrol(arguments: list[str]) -> int:
    match arguments:
        case ["show", "hostnames", names] if names == os.environ["SLURM_JOB_NODELIST"]:
            print("\n".join(hosts()))  # noqa: T201
        case ["requeue", job] if job == os.environ["SLURM_JOB_ID"]:
            Path(os.environ["STEPS"], "requeued").touch()
        case _:
            sys.exit(f"scontrol: invalid command {arguments}")
    return 0


def scancel(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("scancel", allow_abbrev=False)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--signal", required=True, choices=["TERM", "INT", "KILL"])
    parser.add_argument("job", choices=[os.environ["SLURM_JOB_ID"]])
    options = parser.parse_args(arguments)
    for step in Path(os.environ["STEPS"]).glob("[0-9]*"):
        os.kill(int(step.name), getattr(signal, f"SIG{options.signal}"))
    return 0


def hosts() -> list[str]:
    """Names of the nodes of the job. The list has no brackets here: Slurm would expand them."""
    return os.environ["SLURM_JOB_NODELIST"].split(",")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
