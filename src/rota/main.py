"""Where the parts are put together: the only module that names concrete classes."""

from __future__ import annotations

import gc
import logging
import os
import pwd
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread

from rota.adapters.backends import oom, terminal
from rota.adapters.backends.leases import LeaseBackend
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.routed import RoutedBackend
from rota.adapters.ballast import Ballast
from rota.adapters.checkpoints import CheckpointFiles
from rota.adapters.checkpoints_beside import side_by_side
from rota.adapters.clock import SystemClock
from rota.adapters.datadir import DataDir, DataDirError, open_data_dir
from rota.adapters.detect.detector import ClusterDetector
from rota.adapters.gpulocks import ROOT_DIR, GpuLockError, GpuLocks, GuardedProbe
from rota.adapters.heldup import told_of
from rota.adapters.ownership import Unfit, judge
from rota.adapters.probes.nvml import NoGpus, NvmlProbe
from rota.adapters.probes.simulated import SimulatedProbe
from rota.adapters.processes import LinuxProcesses, is_persons
from rota.adapters.samples import FileSamples
from rota.adapters.space import FreeSpace
from rota.adapters.store.house import SQLITE_FILE, bind_file, bind_house, must_have_its_store
from rota.adapters.store.inspect import inspect_file
from rota.adapters.store.open import SQLITE, is_url, open_reader, open_store
from rota.adapters.store.store import SqlStore
from rota.api.offline import OfflineTokens
from rota.app.accounts import Accounts
from rota.app.budget import MIB, Budget, Quotas
from rota.app.checkpoint_dirs import CheckpointDirs
from rota.app.commands import Draft
from rota.app.disk_use import EVERY_S as MEASURE_EVERY_S
from rota.app.disk_use import DiskUse
from rota.app.dispatch import Site
from rota.app.errors import CannotStart, Conflict, NotFound, Refused, Unavailable
from rota.app.later import Later
from rota.app.leases import Leases
from rota.app.loop import Loop
from rota.app.newids import NewIds
from rota.app.ports import Detector, Probe, Processes, RunFilter, Samples, Store, StoreError
from rota.app.retention import Retention, Tidying
from rota.app.sampler import EVERY_S as SAMPLE_EVERY_S
from rota.app.service import Service
from rota.config import Settings
from rota.core.descriptors import HIGHEST
from rota.core.events import RecordPut
from rota.core.reduce import reduce

log = logging.getLogger(__name__)

SIMULATED_BY_DEFAULT = (2, 8)


@dataclass(frozen=True, slots=True)
class Rota:
    """An open house, as its doors need it."""

    service: Service
    leases: Leases
    processes: Processes
    samples: Samples
    detector: Detector
    data_dir: Path


@contextmanager
def open_rota(settings: Settings) -> Iterator[Rota]:
    """A whole server without doors: the queue, the ledger, the loop and the backends on one data directory."""
    _must_make_sense(settings)
    with ExitStack() as stack:
        data_dir, store = _open_files(settings, stack)
        probe = _probe(settings)
        if not isinstance(probe, SimulatedProbe):
            probe = _locked(probe, stack)
        processes, later = LinuxProcesses(), Later()
        stack.callback(processes.close)
        stack.callback(later.close)
        disks = _disks(settings, data_dir.path)
        ballast = Ballast(*disks)
        stack.callback(ballast.close)
        space = FreeSpace(disks, _bytes(settings.disk_floor_mb), ballast)
        jobs = LocalBackend(
            data_dir.path,
            processes=settings.max_processes,
            least_free=space.floor_of(data_dir.path) // 2,
            subuids=processes.subuids,
        )
        _make_room_for_descriptors()  # only now: jobs keep the limit this server was started with
        service: Service
        new_id = NewIds()
        samples = FileSamples(data_dir.path / "metrics")
        saved = CheckpointFiles(data_dir.path / "checkpoints", processes.subuids)
        metrics_use, saved_use = _disk_use(settings, store, samples, saved)
        loop = Loop(
            store,
            RoutedBackend(jobs, LeaseBackend(data_dir.path, processes, later)),
            clock=SystemClock(),
            new_id=new_id,
            site=Site(_checkpoint_dirs(data_dir, saved, _accounts(settings)), _own_env(), _accounts(settings)),
            on_fatal=lambda error: service.abandon(error),  # noqa: PLW0108 - the service is made after the loop
            space=space,
            checkpoints=saved_use,
            budget=Budget(Quotas(settings.person_live_mb * MIB, settings.person_ledger_mb * MIB)),
        )
        service = Service(loop, metrics_use)
        stack.callback(service.abandon, Unavailable("it was closed"))
        stack.callback(loop.close)
        try:
            loop.open(probe.nodes())
            data_dir.pin()
            for newest in store.runs(RunFilter(limit=1)):
                new_id.go_on_from(newest.id, loop.now())
        except StoreError as error:
            raise CannotStart(str(error)) from error
        gc.freeze()  # what was loaded stays: no full collection should walk it again and again
        done = Event()
        stack.callback(done.set)
        _every(settings.probe_every_s, done, lambda: service.see_nodes(probe.nodes()), "probe")
        _every(settings.tidy_every_s, done, Tidying(loop, Retention(), samples, saved).round, "tidy")
        for use in (metrics_use, saved_use):
            if use.most:
                _every(MEASURE_EVERY_S, done, use.measure, "measure", at_once=True)
        _every(SAMPLE_EVERY_S, done, service.sample, "sample")
        leases = Leases(service, processes, later)
        stack.callback(leases.close)
        leases.open()
        detector = ClusterDetector(_surroundings(settings), _count_gpus)
        yield Rota(service, leases, processes, samples, detector, data_dir.path)


def files_trouble(settings: Settings, uid: int | None = None) -> Unfit | None:
    """Return what would keep a server of the account `uid` (its own by default) from using the data directory and the
    database file of these settings; None = nothing. Raises OSError where something cannot be looked at."""
    return judge(settings.data_dir, _database_file(settings), uid)


def store_trouble(data_dir: Path) -> str:
    """Say why a server would not open the SQLite store of this directory; "" = it would. Nothing is changed there."""
    path = data_dir / SQLITE_FILE
    try:
        must_have_its_store(data_dir)
        if path.exists():
            inspect_file(path)
    except StoreError as error:
        return str(error)
    return ""


def serve(settings: Settings, say: Callable[[str], None], *, friendly: bool = False) -> int:
    """The whole server with its doors, until it is told to stop. Returns its exit code."""
    from rota.api.deferred import deferred_models

    with deferred_models():
        from rota.api.assemble import admin_token, announce, open_house
        from rota.api.passed import is_roots, passed
        from rota.api.serve import listen, listen_unix
        from rota.api.serve import serve as serve_doors

    def ready() -> None:
        gc.freeze()
        gc.enable()
        announce(house, sockets, say, friendly=friendly)

    oom.prefer(oom.SERVER_SCORE)
    given = passed(os.environ, settings.port, settings.lease_port)
    with ExitStack() as stack:
        sockets = listen(settings.host, settings.port, settings.lease_port, given, unix=settings.unix_socket)
        stack.callback(sockets.close)
        if given:
            settings = replace(settings, host=sockets.host(), port=sockets.main.getsockname()[1])
        rota = stack.enter_context(open_rota(settings))
        settings = replace(settings, data_dir=rota.data_dir)  # whole: the same files, whatever ~ stands for
        house = open_house(
            service=rota.service,
            leases=rota.leases,
            processes=rota.processes,
            samples=rota.samples,
            detector=rota.detector,
            settings=settings,
            for_machine=sockets.unix is not None and is_roots(sockets.unix),
        )
        if friendly:
            admin_token(house)  # before the first call is answered: without any token every caller is an admin
        if settings.unix_socket and sockets.unix is None:
            with told_of(settings.data_dir):
                sockets.unix = listen_unix(settings.data_dir / "rota.sock")
        broken = rota.service.broken
        serve_doors(house, sockets, ready, broken)
        return 1 if broken else 0


@contextmanager
def read_store(data_dir: Path) -> Iterator[Store]:
    """Only to look, beside a running server or without one: takes neither the lock nor the fence."""
    path = data_dir.expanduser() / "rota.db"
    try:
        if not path.exists():
            raise CannotStart(f"nothing has run from {data_dir} yet; try: rota local -- echo hello")
        store = open_reader(path)
    except (StoreError, OSError, UnicodeEncodeError) as error:
        raise CannotStart(f"cannot read {str(data_dir)!a}: {error}") from error
    try:
        yield store
    except StoreError as error:
        raise CannotStart(f"cannot read {str(data_dir)!a}: {error}") from error
    finally:
        store.close()


@contextmanager
def offline_tokens(settings: Settings) -> Iterator[OfflineTokens]:
    """The tokens of a data directory, or of its database, that no server has open. Nothing is scheduled meanwhile."""
    _must_make_sense(settings)
    with ExitStack() as stack:
        _, store = _open_files(settings, stack)
        try:
            store.begin_epoch()
            state = store.load()
        except StoreError as error:
            raise CannotStart(str(error)) from error

        def put(draft: Draft) -> None:
            at = max(state.at, SystemClock().now())
            event = RecordPut(at=at, by="offline", kind=draft.kind, id=draft.id, parent=draft.parent, body=draft.body)
            reduce(state, event)
            try:
                store.append([event], state)
            except StoreError as error:
                raise CannotStart(str(error)) from error

        yield OfflineTokens(store, put)


def attach(data_dir: Path, run_id: str, *, tmux: bool = False, session: str = "") -> str:
    """Join this terminal to a live run's, or open a tmux window on it, in `session` if one is named. How it ended:
    "detached", "ended", "opened"."""
    with read_store(data_dir) as store:
        run = store.run(run_id)
    if run is None:
        raise NotFound(f"no run {run_id[:50]!r} in {data_dir}; see: rota history", "run_id")
    if run.attempt is None:
        raise Conflict(f"run {run_id} is {run.state}: there is nothing to attach to")
    root = data_dir.expanduser()
    try:
        if tmux:
            terminal.tmux_window(root, run.attempt.id, session or None)
            return "opened a tmux window"
        return terminal.attach(root, run.attempt.id)
    except terminal.NoTerminal as error:
        raise Conflict(f"{error}; start runs with --terminal to attach to them") from error


def _must_make_sense(settings: Settings) -> None:
    """What only this machine can tell of the settings. The URL is not repeated: it may hold a password."""
    if settings.database_url and not is_url(settings.database_url):
        raise CannotStart(
            "--database-url (ROTA_DATABASE_URL): is no database Rota knows; use postgresql://USER@HOST/NAME, "
            "sqlite:////absolute/path, or leave it out for SQLite in the data directory"
        )
    if settings.run_as and not is_persons(settings.run_as):
        raise CannotStart(
            f"--run-as (ROTA_RUN_AS): {settings.run_as[:50]!r} is no account on this machine, or is root's; "
            "name an account that people without one may run as"
        )


def _open_files(settings: Settings, stack: ExitStack) -> tuple[DataDir, Store]:
    try:
        with told_of(settings.data_dir):
            data_dir = open_data_dir(settings.data_dir)
        stack.callback(data_dir.close)
        if not settings.database_url:
            must_have_its_store(data_dir.path)
        else:
            unfit = files_trouble(settings)
            if unfit is not None and not unfit.is_tolerated:
                raise CannotStart(f"cannot use the database of --database-url (ROTA_DATABASE_URL): {unfit}")
        store = _open_store(settings, data_dir.path)
        stack.callback(store.close)
        if settings.database_url:  # one that other data directories could reach too
            bind_house(store, data_dir.path)
        else:
            bind_file(store, data_dir.path)
    except (DataDirError, StoreError, OSError) as error:
        raise CannotStart(str(error)) from error
    return data_dir, store


def _open_store(settings: Settings, data_dir: Path) -> SqlStore:
    """Open the ledger, on a full disk by means of what an earlier server kept for that."""
    url = settings.database_url or f"sqlite:///{data_dir / 'rota.db'}"
    try:
        return open_store(url)
    except StoreError as error:
        disks = _disks(settings, data_dir)
        shortage = FreeSpace(disks, _bytes(settings.disk_floor_mb)).shortage()
        if not shortage or not Ballast(*disks).give_up_all():
            raise
        log.warning("%s: the ballast and the spare files are given up, since %s", error, shortage)
        return open_store(url)


def _disks(settings: Settings, data_dir: Path) -> tuple[Path, Path]:
    """Directories on whose disks the ledger and the records of attempts are written."""
    return data_dir, (_database_file(settings) or data_dir / SQLITE_FILE).parent


def _database_file(settings: Settings) -> Path | None:
    """Return the SQLite file that the settings name; None = they name none, or another kind of database."""
    url = settings.database_url
    return Path(url.removeprefix(SQLITE)).absolute() if url.startswith(SQLITE) else None


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * MIB


def _disk_use(
    settings: Settings, store: Store, samples: FileSamples, saved: CheckpointFiles
) -> tuple[DiskUse, DiskUse]:
    """Of metrics, and of checkpoints."""

    def owner_of(run_id: str) -> str | None:
        run = store.run(run_id)
        return None if run is None else run.user

    return (
        DiskUse(
            samples, owner_of, settings.person_metrics_mb * MIB, what="metrics", frees="old ones go with their runs"
        ),
        DiskUse(
            saved,
            owner_of,
            settings.person_checkpoints_mb * MIB,
            what="checkpoints",
            frees="remove what is not needed from the runs' ROTA_CHECKPOINT_DIR (it is measured every few minutes)",
        ),
    )


def _own_env() -> dict[str, str]:
    """Who a job is that runs as the server's own account. Nothing else of the server's environment reaches a job."""
    try:
        me = pwd.getpwuid(os.geteuid())
    except KeyError:  # a container may run as a number that has no name
        return {}
    return {"HOME": me.pw_dir, "USER": me.pw_name, "LOGNAME": me.pw_name}


def _checkpoint_dirs(data_dir: DataDir, saved: CheckpointFiles, accounts: Accounts) -> CheckpointDirs:
    if not accounts.root:
        return CheckpointDirs(str(saved.root))
    with told_of(saved.root):
        earlier = side_by_side(data_dir, saved.root)
    return CheckpointDirs(str(saved.root), accounts.own or "root", earlier)


def _accounts(settings: Settings) -> Accounts:
    return Accounts(os.geteuid() == 0, _own_env().get("USER", ""), settings.run_as, is_persons)


def _locked(probe: Probe, stack: ExitStack) -> Probe:
    """Two servers with a data directory each would give out the same GPUs twice."""
    try:
        with told_of(ROOT_DIR):
            locks = GpuLocks()
            stack.callback(locks.close)
            locks.take([gpu.uuid for node in probe.nodes() for gpu in node.gpus])
    except (GpuLockError, NoGpus, OSError) as error:
        raise CannotStart(str(error)) from error
    return GuardedProbe(probe, locks)


def _make_room_for_descriptors() -> None:
    """A watched process, a waiting client and a watcher of events cost a descriptor each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HIGHEST if hard == resource.RLIM_INFINITY else min(hard, HIGHEST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _surroundings(settings: Settings) -> dict[str, str]:
    """What the detector looks at: the environment, with what flags said instead."""
    said = {"ROTA_CLUSTER_TYPE": settings.cluster_type, "RAY_ADDRESS": settings.ray_address}
    return {**os.environ, **{name: value for name, value in said.items() if value}}


def _count_gpus() -> int:
    """Real ones, also where the house gives out simulated ones."""
    try:
        return sum(len(node.gpus) for node in NvmlProbe().nodes())
    except NoGpus:
        return 0


def _probe(settings: Settings) -> Probe:
    if settings.simulated is not None:
        return SimulatedProbe(*settings.simulated)
    try:
        return NvmlProbe()
    except NoGpus as error:
        log.warning("no GPUs found (%s): using a simulated 2 x 8", error)
        return SimulatedProbe(*SIMULATED_BY_DEFAULT)


def _every(seconds: float, done: Event, act: object, name: str, *, at_once: bool = False) -> None:
    assert callable(act)

    def run() -> None:
        said, first = "", at_once
        while not done.wait(0.0 if first else seconds):
            first = False
            try:
                act()
                said = ""
            except (Refused, StoreError, NoGpus, OSError) as error:  # trouble that may pass: say it once and look again
                if str(error) != said:
                    log.warning("%s: %s", name, error)
                said = str(error)

    Thread(target=run, name=f"rota-{name}", daemon=True).start()
