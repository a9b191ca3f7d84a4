"""zero-deepspeed [OPTION…] PROGRAM [ARGUMENT…]: starts a program written for DeepSpeed on the GPUs of one host, or of several by ssh."""

import argparse
import base64
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from zero.deepspeed import FOLDER, environment

Hosts = dict[str, list[int]]  # and the numbers of their slots
_SECRET = "ZERO_JOB_SECRET"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="zero-deepspeed", description=__doc__)
    add: Any = parser.add_argument
    add("--path", action="store_true", help="print the folder for PYTHONPATH, for torchrun, accelerate launch or mpirun, and end")
    add("--num_gpus", "--num_accelerators", type=int, default=-1, help="ranks on each host; by default its GPUs, or 1")
    add("--num_nodes", type=int, default=-1, help="the first so many hosts of the hostfile")
    add("--hostfile", "-H", default="/job/hostfile", help="lines of `HOST slots=N`")
    add("--include", "-i", default="", help="hosts and their slots: host1@host2:0,2")
    add("--exclude", "-e", default="", help="what is left out, in the same form")
    add("--master_port", type=int, default=int(os.environ.get("DLTS_MASTER_PORT", "29500")))
    add("--master_addr", default="", help="by default the first host")
    add("--node_rank", type=int, default=-1, help="this host's number, where each host is started by hand")
    add("--module", "-m", action="store_true", help="PROGRAM is a module, as of python -m")
    add("--no_python", action="store_true", help="PROGRAM is no Python file")
    add("--no_local_rank", action="store_true", help="do not pass --local_rank=N to PROGRAM; LOCAL_RANK has it")
    add("--ssh_port", type=int, help="of ssh to the other hosts")
    add("--hosts", default="", help=argparse.SUPPRESS)  # of this launcher to itself on another host
    for name in ("--force_multi", "--bind_cores_to_rank", "--no_ssh_check", "--no_ssh", "--save_pid"):
        add(name, action="store_true", help="taken, without effect")
    for name in ("--launcher", "--launcher_args", "--enable_each_rank_log", "--bind_core_list", "--venv_script"):
        add(name, nargs="?", help="taken, without effect")
    add("program", nargs="?")
    add("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.program and not args.path:
        parser.error("give a program")
    return args


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() or 1


def _named(text: str) -> dict[str, list[int] | None]:
    """host1@host2:0,2 as hosts and their slots; None: all."""
    rows = (part.partition(":") for part in filter(None, text.split("@")))
    return {host: [int(slot) for slot in slots.split(",")] if slots else None for host, _, slots in rows}


def chosen(args: argparse.Namespace) -> Hosts:
    """The hosts of the hostfile, or this one, with the slots that take part."""
    file = Path(args.hostfile)
    lines = [line.split("#")[0].split() for line in file.read_text().splitlines()] if file.is_file() else []
    hosts = {line[0]: list(range(int(line[1].removeprefix("slots=")))) for line in lines if line}
    option = next((host for host in hosts if host.startswith("-")), None)
    if option is not None:
        raise SystemExit(f"zero-deepspeed: {file} names {option!r}, which is no host: take the line out")
    hosts = hosts or {"localhost": list(range(args.num_gpus if args.num_gpus > 0 else _gpus()))}
    include, exclude = _named(args.include), _named(args.exclude)
    for host, slots in (include | exclude).items():
        if host not in hosts or not set(slots or []) <= set(hosts[host]) and file.is_file():
            raise SystemExit(
                f"zero-deepspeed: --include and --exclude name {host}:{slots}, and the hosts are {hosts}: name one of those"
            )
    if include:
        hosts = {host: hosts[host] if slots is None else slots for host, slots in include.items()}
    hosts = {host: [s for s in slots if host not in exclude or s not in (exclude[host] or slots)] for host, slots in hosts.items()}
    hosts = {host: slots[: args.num_gpus] if args.num_gpus > 0 else slots for host, slots in hosts.items() if slots}
    hosts = dict(list(hosts.items())[: args.num_nodes]) if args.num_nodes > 0 else hosts
    if not hosts:
        raise SystemExit("zero-deepspeed: no host is left: look at --hostfile, --include and --exclude")
    return hosts


def _program(args: argparse.Namespace, local_rank: int) -> list[str]:
    python = [] if args.no_python else [sys.executable, "-u", *(["-m"] if args.module else [])]
    return [*python, args.program, *([] if args.no_local_rank else [f"--local_rank={local_rank}"]), *args.arguments]


def _start_ranks(args: argparse.Namespace, hosts: Hosts, node: int, started: list[subprocess.Popen[bytes]]) -> None:
    """Those of this host."""
    sizes, slots = [len(slots) for slots in hosts.values()], list(hosts.values())[node]
    common = environment() | {
        "MASTER_ADDR": args.master_addr or ("127.0.0.1" if len(hosts) == 1 else next(iter(hosts))),
        "MASTER_PORT": str(args.master_port),
        "WORLD_SIZE": str(sum(sizes)),
        "LOCAL_SIZE": str(len(slots)),
        "LOCAL_WORLD_SIZE": str(len(slots)),
        "CROSS_RANK": str(node),
        "CROSS_SIZE": str(len(hosts)),
    }
    if slots != list(range(len(slots))):
        common["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, slots))
    first = sum(sizes[:node])
    for i in range(len(slots)):
        own = {"RANK": str(first + i), "LOCAL_RANK": str(i)}
        started.append(subprocess.Popen(_program(args, i), env={**os.environ, **common, **own}))


def _start_host(args: argparse.Namespace, hosts: Hosts, node: int) -> subprocess.Popen[bytes]:
    """This launcher on another host, in the same folder. A command line is for all to read: a secret is not in it."""
    told = base64.urlsafe_b64encode(json.dumps(hosts).encode()).decode()
    address = args.master_addr or next(iter(hosts))
    own = ["--hosts", told, "--node_rank", str(node), "--master_port", str(args.master_port), "--master_addr", address]
    own += [f"--{name}" for name in ("module", "no_python", "no_local_rank") if getattr(args, name)]
    if _SECRET in os.environ:
        raise SystemExit(
            f"zero-deepspeed: {_SECRET} would be in ssh's command line: write it in a file on each host, and name that in {_SECRET}_FILE"
        )
    variables = [
        f"{key}={value}" for key, value in os.environ.items() if key.startswith(("PYTHON", "NCCL", "ZERO_", "OMP_")) or key == "PATH"
    ]
    command = shlex.join(["env", *variables, sys.executable, "-m", "zero.deepspeed", *own, args.program, *args.arguments])
    port = ["-p", str(args.ssh_port)] if args.ssh_port else []
    return subprocess.Popen(["ssh", "-tt", *port, "--", list(hosts)[node], f"cd {shlex.quote(os.getcwd())} && {command}"])


def _end(processes: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        process.send_signal(number)


def _told() -> bool:
    """Whether Ctrl-C in the terminal comes to all processes here: the launcher's group is the one in the foreground."""
    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _wait(processes: list[subprocess.Popen[bytes]], ended: list[int]) -> int:
    """The first status that is not 0, or that of a signal in `ended`: then the others end. One that does not is killed after 30 s."""
    while None in (statuses := [process.poll() for process in processes]) and not any(statuses) and not ended:
        time.sleep(0.05)
    failed = next(filter(None, statuses), 0)
    if ended and not failed:
        if ended[0] != signal.SIGINT or not _told():  # a second one would interrupt what they save
            _end(processes, ended[0])
        while ended == [signal.SIGINT] and None in [process.poll() for process in processes]:
            time.sleep(0.05)
    elif failed:
        time.sleep(1)  # they say why
    _end(processes, signal.SIGTERM)
    last = time.monotonic() + 30
    while None in [process.poll() for process in processes] and time.monotonic() < last:
        time.sleep(0.05)
    _end(processes, signal.SIGKILL)
    failed = failed or next(filter(None, [process.wait() for process in processes]), 0)
    if ended and ended != [signal.SIGINT]:
        return 128 + ended[-1]
    return 128 - failed if failed < 0 else failed


def main() -> None:
    args = _arguments()
    if args.path:
        print(FOLDER)
        return
    hosts: Hosts = json.loads(base64.urlsafe_b64decode(args.hosts)) if args.hosts else chosen(args)
    processes: list[subprocess.Popen[bytes]] = []
    # Signals are noted alone: one that acted between the start of a process and its place in the list would miss it.
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: ended.append(number))
    try:
        if len(hosts) == 1 or args.node_rank >= 0:
            _start_ranks(args, hosts, max(0, args.node_rank), processes)
        else:
            for node in range(len(hosts)):
                processes.append(_start_host(args, hosts, node))
    except BaseException:
        _end(processes, signal.SIGTERM)
        raise
    sys.exit(_wait(processes, ended))


if __name__ == "__main__":
    main()
