"""Cgroups: one per shim, so that nothing escapes the kill, and a device filter that hides other people's GPUs.

Only cgroup v2 is used for the kill (`cgroup.kill`); it may be the only hierarchy (/sys/fs/cgroup) or the hybrid one
(/sys/fs/cgroup/unified). Devices are denied by a small BPF program on the v2 group, or by v1 `devices.deny` where that
hierarchy exists. Limits (see limits) need the controllers memory, pids and cpu, each in v2 or in a v1 hierarchy of its
own. All of it is optional: without rights the shim, as subreaper, walks its tree instead.

Where the groups go, in v2: into the group above `rota-server` when the server was put there (DelegateSubgroup in its
systemd unit; v2 gives controllers only to groups below one that holds no process), else below the server's own group,
else (root) at the top. The first of these where all controllers work is taken.

Cost seen on a 2-core virtual machine: mkdir + join + rmdir about 0.2 ms. A group belongs to a shim process, which
carries many attempts one after the other, so a plain attempt pays nothing.
"""

# ruff: noqa: SIM105 - contextlib would be one more import in every shim

from __future__ import annotations

import ctypes
import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

NVIDIA_MAJOR = 195
BPF_SYSCALL = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "s390x": 351, "riscv64": 280}
BPF_PROG_LOAD, BPF_PROG_ATTACH = 5, 8
BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI = 15, 6, 2
MAX_DENIED = 1024
ASIDE = "aside"
HIDDEN = 0o711  # of groups: their files can be read by who knows the path

SERVER_LEAF = "rota-server"  # as DelegateSubgroup in cli/units/rota.service
# Controllers of limits, and a file by which v1 shows each.
CONTROLLERS = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"}

Device = tuple[int, int]


class Hierarchies:
    """Where attempts' cgroups go. An empty path: that hierarchy is absent or not ours to use."""

    def __init__(
        self, unified: str = "", devices: str = "", limits: dict[str, str] | None = None, home: str = ""
    ) -> None:
        self.unified = unified
        self.devices = devices
        self.limits = limits or {}  # controller -> base group; `unified` itself where v2 has that controller
        self.home = home  # the v2 group this process was in

    def unified_controllers(self) -> list[str]:
        return [controller for controller, base in self.limits.items() if base == self.unified]

    def bases(self) -> list[str]:
        """Groups that hold those of workers."""
        return sorted({base for base in (self.unified, *self.limits.values()) if base})

    def cpu_v1(self) -> str:
        """The base group of CPU time, where that is v1's: groups of tasks are beside it."""
        base = self.limits.get("cpu", "")
        return "" if base == self.unified else base


def probe(name: str) -> Hierarchies:
    """Find where groups can really be made and joined, by doing it. Called once, in the zygote: it forks."""
    mounts = _mounts()
    own = _own_groups()
    mount = next((m for kind, m, _ in mounts if kind == "cgroup2"), "")
    home = f"{mount}{own.get('', '/')}".rstrip("/") if mount else ""
    unified, limits = _probe_unified(mount, home, name)
    devices = _usable([_v1_parent(mounts, own, "devices")], name, "devices.deny")
    try_remove(devices)  # made again when a task needs it
    for controller, needed in CONTROLLERS.items():
        if controller not in limits and (base := _usable([_v1_parent(mounts, own, controller)], name, needed)):
            limits[controller] = base
    return Hierarchies(unified, devices, limits, home)


def _probe_unified(mount: str, home: str, name: str) -> tuple[str, dict[str, str]]:
    """Choose the v2 base, and which controllers work below it."""
    if not mount:
        return "", {}
    offered = [controller for controller in CONTROLLERS if controller in _words(f"{mount}/cgroup.controllers")]
    delegated = [os.path.dirname(home)] if os.path.basename(home) == SERVER_LEAF else []
    chosen = ""
    works: list[str] = []
    for parent in dict.fromkeys([*delegated, home, mount]):
        base = _usable([parent], name, "cgroup.kill")
        if not base:
            continue
        pass_on(parent, offered)
        pass_on(base, offered)
        given = [controller for controller in offered if controller in _words(f"{base}/cgroup.subtree_control")]
        if not chosen or len(given) > len(works):
            try_remove(chosen)
            chosen, works = base, given
        else:
            try_remove(base)
        if len(works) == len(offered):
            break
    return chosen, dict.fromkeys(works, chosen)


def _v1_parent(mounts: list[tuple[str, str, list[str]]], own: dict[str, str], controller: str) -> str:
    for kind, mount, options in mounts:
        if kind == "cgroup" and controller in options:
            return f"{mount}{own.get(controller, '/')}"
    return ""


def pass_on(group: str, controllers: Iterable[str]) -> None:
    """Let the groups below this v2 group have these controllers, as far as the kernel lets us."""
    for controller in controllers:
        try_write(f"{group}/cgroup.subtree_control", f"+{controller}")


def _words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def aside(base: str) -> str:
    """Where a shim stands while it kills its own group. Not `base` itself: with controllers on, that may hold no
    process."""
    group = f"{base}/{ASIDE}"
    create(group)
    return group


class Blow:
    """Kills all that is in a group, but for the calling process, which is in its `leaf`. The files are opened before:
    other accounts can hold the lock of a directory that they can search, and whoever makes a group there, or looks up a
    name that the kernel does not have at hand, waits for it."""

    def __init__(self, base: str, group: str, leaf: str) -> None:
        files = (f"{aside(base)}/cgroup.procs", f"{group}/cgroup.kill", f"{leaf}/cgroup.procs")
        self._fds: list[int] = []
        try:
            for file in files:
                self._fds.append(os.open(file, os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            self.close()
            raise

    def strike(self) -> None:
        """Kill once. OSError: nothing was killed, as there is no group any more in which to stand aside."""
        leave, kill, back = self._fds
        os.write(leave, b"0")
        try:
            os.write(kill, b"1")
        except OSError:
            pass  # as in `kill`
        finally:
            os.write(back, b"0")

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class Roll:
    """Tells which processes are in a group and in those below it. The files are opened before, as those of a blow."""

    def __init__(self, group: str) -> None:
        self._top = group
        self._fds: dict[str, tuple[int, int]] = {}  # of a group and of its list of processes
        self.add(group)

    def add(self, group: str) -> None:
        """Include a group below, if it is one."""
        if group != self._top and not group.startswith(f"{self._top}/"):
            return
        place = os.open(group, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listed = os.open(f"{group}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(place)
            raise
        self._fds[group] = (place, listed)

    def drop(self, group: str) -> None:
        for fd in self._fds.pop(group, ()):
            os.close(fd)

    def others(self) -> set[int] | None:
        """Return all but the calling process. None: there are groups that were not added. OSError: one is gone."""
        found: set[int] = set()
        for group, (place, listed) in self._fds.items():
            below = sum(os.path.dirname(each) == group for each in self._fds)
            if os.fstat(place).st_nlink != 2 + below:
                return None
            os.lseek(listed, 0, os.SEEK_SET)
            text = b""
            while chunk := os.read(listed, 1 << 16):
                text += chunk
            found.update(map(int, text.split()))
        return found - {0, os.getpid()}  # 0: not ours to see


def clear(base: str) -> None:
    """Remove the groups of shims that are gone; those that still hold a process refuse."""
    for group in _below(base):
        if os.path.basename(group) != ASIDE:
            try_remove(group)


def try_remove_base(base: str) -> None:
    """Remove a group that holds those of workers, if none is left. Until then `aside` stays: they have it open."""
    if any(os.path.basename(group) != ASIDE for group in _below(base)):
        return
    for group in (f"{base}/{ASIDE}", base):
        try:
            os.rmdir(group)
        except OSError:
            pass  # gone, or another worker is just being born


def _below(group: str) -> list[str]:
    try:
        return [entry.path for entry in list(os.scandir(group)) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # the last of them took it along


def discard(group: str) -> None:
    """Remove a group, and those beside it whose names go on from its own with a hyphen, as far as they are empty."""
    try_remove(group)
    place, name = os.path.split(group)
    try:
        beside = [entry for entry in os.listdir(place) if entry.startswith(f"{name}-")]
    except OSError:
        return
    for entry in beside:
        try_remove(f"{place}/{entry}")


def try_remove(group: str) -> None:
    """Remove a group if it is empty."""
    try:
        _remove_tree(group)
    except OSError:
        pass


def create(group: str) -> None:
    """Make a group that jobs cannot list: who lists a directory into memory that does not answer (FUSE) holds its lock,
    and whoever makes or removes a group in it would wait for that."""
    os.makedirs(group, HIDDEN, exist_ok=True)


def create_below(group: str) -> None:
    """The same, where the group above is there. FileNotFoundError: it is not, and would be made without its bounds."""
    try:
        os.mkdir(group, HIDDEN)
    except FileExistsError:
        pass


def join(group: str) -> None:
    """Move the calling process in."""
    write(f"{group}/cgroup.procs", "0")


def kill(group: str) -> None:
    """SIGKILL to all that is in the group or below it, atomically against forks."""
    try_write(f"{group}/cgroup.kill", "1")


def members(group: str) -> list[int]:
    """The processes in a group and below it."""
    return [int(word) for place, _, _ in os.walk(group) for word in _words(f"{place}/cgroup.procs")]


def remove(group: str, timeout_s: float = 2.0) -> bool:
    """Empty the group of whatever still lives in it and remove it. False: something in there does not die."""
    deadline = time.monotonic() + timeout_s
    pause = 0.0005
    while True:
        try:
            _remove_tree(group)
            return True
        except FileNotFoundError:
            return True
        except OSError:
            kill(group)
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def gpus_to_deny(allowed: Iterable[int]) -> list[Device]:
    """The device files of all GPUs but the task's own, which are named by their minors."""
    mine = set(allowed)
    try:
        names = os.listdir("/dev")
    except OSError:
        return []
    minors = [int(name[6:]) for name in names if name.startswith("nvidia") and name[6:].isdigit()]
    return [(NVIDIA_MAJOR, minor) for minor in sorted(minors) if minor not in mine]


def deny_devices(group: str, denied: list[Device]) -> None:
    """Attach a filter to a v2 group: character devices in `denied` answer EPERM, everything else is as before."""
    if len(denied) > MAX_DENIED:
        raise ValueError(f"{len(denied)} devices to deny, at most {MAX_DENIED} can be")
    if not denied:
        return
    program = _device_program(denied)
    instructions = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"GPL")
    load = struct.pack(
        "=IIQQ",
        BPF_PROG_TYPE_CGROUP_DEVICE,
        len(program) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
    )
    prog_fd = _bpf(BPF_PROG_LOAD, load)
    try:
        group_fd = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(BPF_PROG_ATTACH, struct.pack("=IIII", group_fd, prog_fd, BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI))
        finally:
            os.close(group_fd)
    finally:
        os.close(prog_fd)


def deny_devices_v1(group: str, denied: list[Device]) -> None:
    for major, minor in denied:
        write(f"{group}/devices.deny", f"c {major}:{minor} rwm")


def _device_program(denied: list[Device]) -> bytes:
    """r0 = 0 (refuse) if this is a character device and (major, minor) is in the list, else 1."""

    def instruction(code: int, dst: int = 0, src: int = 0, offset: int = 0, value: int = 0) -> bytes:
        return struct.pack("=BBhi", code, dst | src << 4, offset, value)

    load_word, and_imm, jump_ne, jump_eq, mov_imm, leave = 0x61, 0x57, 0x55, 0x15, 0xB7, 0x95
    to_allow = 2 * len(denied)
    code = [
        instruction(load_word, 4, 1, 0),  # access_type: access << 16 | type
        instruction(load_word, 2, 1, 4),  # major
        instruction(load_word, 3, 1, 8),  # minor
        instruction(and_imm, 4, value=0xFFFF),
        instruction(jump_ne, 4, offset=to_allow, value=2),  # not a character device
    ]
    for index, (major, minor) in enumerate(denied):
        left = to_allow - 2 * index - 2  # instructions between this pair and "allow"
        code += [instruction(jump_ne, 2, offset=1, value=major), instruction(jump_eq, 3, offset=left + 2, value=minor)]
    code += [instruction(mov_imm, 0, value=1), instruction(leave), instruction(mov_imm, 0, value=0), instruction(leave)]
    return b"".join(code)


def _bpf(command: int, attributes: bytes) -> int:
    number = BPF_SYSCALL.get(os.uname().machine)
    if number is None:
        raise OSError(38, "bpf: unknown machine")
    buffer = ctypes.create_string_buffer(attributes, 128)  # zeros beyond what we set
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(ctypes.c_long(number), ctypes.c_int(command), buffer, ctypes.c_uint(128))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf: {os.strerror(code)}")
    return result


def _usable(parents: list[str], name: str, needed: str) -> str:
    for parent in filter(None, parents):
        base = f"{parent.rstrip('/')}/{name}"
        test = f"{base}/probe.{os.getpid()}"
        try:
            create(base)
            create(test)
        except OSError:
            continue
        try:
            if os.path.exists(f"{test}/{needed}") and _can_join(test):
                return base
        finally:
            remove(test)
        try_remove(base)
    return ""


def _can_join(group: str) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            join(group)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's code
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _mounts() -> list[tuple[str, str, list[str]]]:
    """(file system type, mount point, super options) of each cgroup mount. A mount point may hold a carriage return,
    which ends no line here."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split(" ", 2)
            if kind in ("cgroup", "cgroup2"):
                found.append((kind, before.split(" ")[4], options.strip().split(",")))
    return found


def _own_groups() -> dict[str, str]:
    """Controller (v1) or "" (v2) -> our own group's path."""
    groups = {}
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                groups[controller] = path
    return groups


def _remove_tree(group: str) -> None:
    """FileNotFoundError: it is not there. Others may be removing what is below it as well."""
    try:
        os.rmdir(group)  # the usual case, one call
    except FileNotFoundError:
        raise
    except OSError:
        for entry in list(os.scandir(group)):  # a list: an iterator that is not exhausted has to be closed
            if entry.is_dir(follow_symlinks=False):
                try:
                    _remove_tree(entry.path)
                except FileNotFoundError:
                    pass
        os.rmdir(group)


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def try_write(path: str, text: str) -> None:
    try:
        write(path, text)
    except OSError:
        pass  # the callers look at what came of it, not at this
