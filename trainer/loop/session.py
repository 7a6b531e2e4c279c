"""The session around one train, evaluate or predict: what monitors it, what it saves, whether it
must end; and the state that it begins with: a new one, or that of a checkpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from pipeline.description import Describe
from pipeline.errors import CheckpointError, FingerprintError
from pipeline.logs import logger
from pipeline.machine import share_cores
from trainer.checkpointing.iterator_files import IteratorFiles
from trainer.checkpointing.kept_data import as_in_run, has_new_head
from trainer.checkpointing.listing import WhichStep, find_elsewhere
from trainer.checkpointing.manager import CheckpointManager, Saved
from trainer.checkpointing.orbax_paths import check_directory
from trainer.checkpointing.owner import Ownership, mark_workdir
from trainer.checkpointing.warm_start import WarmStart
from trainer.checkpointing.warm_start_loading import plan_loading
from trainer.hosts.activity import Activity
from trainer.hosts.exchange import Exchange, SharedDecisions
from trainer.hosts.exits import WATCHER, Check, ending
from trainer.hosts.failures import poll
from trainer.hosts.supervisor import AGAIN, Supervisor
from trainer.inputs import Input, InputFn
from trainer.loop.compiled import Compiled
from trainer.loop.dispatching import Steps
from trainer.loop.feed import Chunks, Feeder
from trainer.loop.job import Job, Mode, OpenedInput
from trainer.loop.preflight import agree, facts_of
from trainer.reports.workdir import CHECKPOINTS
from trainer.task import TrainState

OWN_BOUND_SECONDS = (
    1.0  # an input with its own bound raises a better error, so it should come first
)
ORDER_SETTINGS = ("global_batch_size", "seed")  # they determine the order of a recipe's records
log = logger("trainer")


@dataclass
class Session:
    """The session's parts.

    describe: what describes the model, once that is known. superbatch_bytes: of the config, or what
    host 0 allows, once all hosts agree."""

    job: Job
    supervisor: Supervisor
    decisions: SharedDecisions
    checkpoints: CheckpointManager
    ownership: Ownership
    describe: Describe = lambda data: data
    superbatch_bytes: int = 0

    @property
    def activity(self) -> Activity:
        """What the call does."""
        return self.supervisor.activity

    def call_back(self, method: str, event: Any) -> None:
        """Calls this method of every callback."""
        for callback in self.job.callbacks:
            with self.activity.doing(f"in {method} of the callback {type(callback).__name__}"):
                getattr(callback, method)(event)

    def open(self, mode: Mode, input_fn: InputFn, start_step: int = 0) -> OpenedInput:
        """See Job.open. Hosts with records of their own agree on how many there are."""
        with self.activity.doing(f"opening the input ({mode})"):
            opened = self.job.open(mode, input_fn, start_step, self.describe)
            info = opened.source.info
            if info.program == "own" and info.host_records is not None:
                seconds = self.job.config.stall_seconds
                counts = self.exchange.from_all("records", info.host_records, seconds)
                cast(Any, opened.source).agree_on(counts)
            return opened

    def input_state(self, source: Input, position: Any) -> dict[str, Any]:
        """The state of an input there, to be saved; of every host, where they differ."""
        state = source.state(position)
        if source.info.program not in ("rows", "own"):
            return state

        def wait(told: Callable[[], Any], seconds: float) -> None:
            # A host that was asked to end saves first, as all others do.
            poll(lambda: self.supervisor.check_failed() or told(), seconds)

        states = self.exchange.from_all("position", state, self.job.config.stall_seconds, wait)
        return {"fingerprint": source.info.fingerprint, "hosts": states}

    def iterator_files(self, source: Input) -> IteratorFiles:
        """Those of this host; of host 0 where all run the same program, and it saves for all."""
        host = self.exchange.index if source.info.program == "own" else 0
        return IteratorFiles(self.checkpoints.workdir, host, self.ownership.fence)

    @property
    def exchange(self) -> Exchange:
        """How the hosts of the session talk to each other."""
        return self.supervisor.exchange

    def own(self) -> None:
        """Makes this run the owner of the work directory until the call ends, before it reads,
        truncates or writes in it. Host 0 takes it for all hosts. A fast_dev_run writes nothing and
        skips this.

        OwnerError if another training run owns it; OptionError or CheckpointError if it has
        something that no run made and that this one would replace or remove; on the other hosts, a
        HostError with that failure."""
        config = self.job.config

        def take() -> None:
            check_directory(config.workdir)
            self.ownership.take(lambda seconds: self.supervisor.wait(lambda: None, seconds))

        if not config.fast_dev_run:
            self.exchange.from_host_0("owned", take, 2 * config.stall_seconds)

    def agree_on(
        self, inputs: Sequence[OpenedInput], start: int, end: int | None, **others: Any
    ) -> None:
        """Returns when all hosts are about to do the same, as `agree` does, and this one knows what
        it shares with others; once per call. others: arguments of the call."""
        config = self.job.config
        mark = ""
        if self.exchange.index == 0 and not config.fast_dev_run:
            mark = mark_workdir(config.workdir)
        facts = lambda: facts_of(self.job, inputs, start, end) | others  # noqa: E731
        agree(self.exchange, facts, config.workdir, mark, config.stall_seconds)
        share_cores(self.exchange.processes_here(config.stall_seconds))
        self.superbatch_bytes = config.superbatch_bytes or self.exchange.from_host_0(
            "superbatch_bytes", self.job.placement.superbatch_bytes
        )

    def checkpoints_of(
        self, step: WhichStep | None, checkpoint_path: str | None
    ) -> tuple[CheckpointManager, int]:
        """The checkpoints to read one from, and its step: of the work directory, or of another; in
        a fast_dev_run 0.

        Raises CheckpointError if there is no such checkpoint."""
        if self.job.config.fast_dev_run:
            return self.checkpoints, 0
        if checkpoint_path is None:
            return self.checkpoints, self.checkpoints.require(step)
        best = step == "best"
        checkpoint = find_elsewhere(checkpoint_path, None if best else step)
        if best and checkpoint_path.rstrip("/").endswith(f"/{CHECKPOINTS}/{checkpoint.step}"):
            raise CheckpointError(
                f"checkpoint_path={checkpoint_path!r} is one checkpoint: leave out 'best'."
            )
        elsewhere = CheckpointManager(replace(self.job.config, workdir=checkpoint.workdir))
        return elsewhere, elsewhere.require("best") if best else checkpoint.step

    def check_late(self) -> None:
        """The check while training waits for its input. A single process may save and end. Several
        hosts can only save together, so they wait for the input, or for its stall_seconds."""
        if self.supervisor.alone:
            self.supervisor.check_asked()
        self.supervisor.check_failed()

    def end_if_preempted(self) -> None:
        """Raises an Ending if a host was asked to end, on all hosts before the same dispatch."""
        if (decision := self.decisions.poll()).preempted:
            raise ending(f"{decision.stop}; {AGAIN}", decision.interrupted, together=True)

    @contextmanager
    def feeding(
        self,
        program: Compiled,
        opened: OpenedInput,
        position: Any,
        steps: Steps,
        *,
        late: Check | None = None,
        ends: bool = False,
    ) -> Iterator[Feeder]:
        """What feeds the dispatches of `steps` from the input's `position` on. The program compiles
        while the first batches are read.

        late: called while a chunk is waited for; may raise (default: check). ends: whether the
        input may end before."""
        complete = opened.source.info.program == "complete"  # then hosts compare what they deliver
        common = self.exchange.common_end() if ends or complete else None
        bound = self.job.config.stall_seconds + OWN_BOUND_SECONDS
        chunks = Chunks(
            opened.source.batches(position),
            steps.start,
            steps.end,
            steps.lengths(),
            opened.struct,
            program,
            common,
            self.job.labels_without_target(opened),
        )
        with closing(Feeder(chunks, bound, late or self.supervisor.check)) as feeder:
            with self.activity.doing("compiling"):
                program.compile(steps.compiled)
            yield feeder


@contextmanager
def open_session(job: Job) -> Iterator[Session]:
    """The session of a call."""
    ownership = Ownership(job.config.workdir)
    checkpoints = CheckpointManager(job.config, ownership.fence)
    supervisor = Supervisor(job.config)
    # Report a failure before anything waits for the other hosts, as closing the checkpoints does.
    with (
        WATCHER.watching(supervisor),
        ownership,  # until the last checkpoint is written
        checkpoints,
        supervisor.reporting(),
    ):
        checkpoints.activity = supervisor.activity
        decisions = SharedDecisions(supervisor.exchange, supervisor.asked_anywhere)
        yield Session(job, supervisor, decisions, checkpoints, ownership)
        supervisor.check_asked()  # a request after the end of the loop; nothing is lost
    supervisor.check_asked()  # or while the last checkpoint was written


class Restored(NamedTuple):
    """What a call that trains nothing begins with: an input, a state, and the checkpoints that have
    it."""

    opened: OpenedInput
    state: TrainState
    step: int
    checkpoints: CheckpointManager


def restore(
    session: Session,
    mode: Mode,
    input_fn: InputFn,
    step: WhichStep | None,
    checkpoint_path: str | None,
    **arguments: Any,
) -> Restored:
    """The input, and the state of a checkpoint, once all hosts agree on both. arguments: others of
    the call.

    step, checkpoint_path: see Trainer.evaluate. In a fast_dev_run the state is an untrained one."""
    job = session.job
    with session.supervisor.leaving():
        checkpoints, number = session.checkpoints_of(step, checkpoint_path)
        step = int(number)  # of NumPy, it could not be written as JSON
        if not job.config.fast_dev_run:
            session.describe = as_in_run(checkpoints.workdir, step)
        opened = session.open(mode, input_fn)
    session.agree_on([opened], step, step, checkpoint_path=checkpoint_path, **arguments)
    with session.supervisor.leaving():
        if job.config.fast_dev_run:
            state = job.fresh_state(opened)
        else:
            state = checkpoints.restore(step, job.abstract_state(opened)).state
    return Restored(opened, state, step, checkpoints)


@dataclass(frozen=True)
class Begun:
    """The state and the input's position after `step`, before the first step to train. run: that
    saved them, if known.

    productive_seconds: see Goodput."""

    step: int
    state: TrainState
    position: Any
    productive_seconds: float = 0.0
    run: str | None = None


def begin(session: Session, opened: OpenedInput, step: int, warm_start: WarmStart) -> Begun:
    """What a run begins with: a new model if `step` is 0, else the checkpoint of that step."""
    job = session.job
    if not opened.resumable:
        (log.warning if step else log.info)(
            "the input is a plain iterable, which has no position: a resumed run starts it from "
            "its beginning, unless input_fn starts it at InputContext.start_step",
        )
    if step == 0:
        loading = None
        if warm_start.init_from:
            new_head = has_new_head(warm_start, opened.description, job.target)
            loading = plan_loading(warm_start, job.abstract_state(opened), new_head)
        state = job.fresh_state(opened)
        if loading:
            state = loading.into(state, job.task, job.placement)
        return Begun(0, state, opened.source.info.start)
    if warm_start.init_from:
        log.info(
            "init_from=%s is ignored: the work directory has a checkpoint", warm_start.init_from
        )
    saved = session.checkpoints.restore(step, job.abstract_state(opened))
    config = job.config.to_json()
    position = resumed_position(opened.source, saved, config)
    session.iterator_files(opened.source).resume(opened.source, step)
    changes = ", ".join(saved.changes(config))
    log.info("resuming from the checkpoint of step %d%s", step, changes and f"; changed: {changes}")
    return Begun(step, saved.state, position, saved.productive_seconds, saved.run)


def resumed_position(source: Input, saved: Saved, config: Mapping[str, Any]) -> Any:
    """The input's position at the saved step. config: the settings of this run, as JSON.

    Raises FingerprintError, with the settings to resume with, if the data or their order have
    changed."""
    try:
        return source.restore(saved.input_state)
    except FingerprintError as error:
        changed = [name for name in ORDER_SETTINGS if saved.config.get(name) != config[name]]
        same_data = saved.input_state.get("fingerprint") == source.info.fingerprint
        if not same_data or not changed:
            data = "resume with the --data-dir and --train-split that it was trained on; "
            raise FingerprintError(
                f"the checkpoint of step {saved.step} does not fit this input: {error} On the "
                f"command line, {'' if same_data else data}another --workdir starts over."
            ) from error
        then = ", ".join(f"{name}={saved.config.get(name)}" for name in changed)
        now = ", ".join(f"{name}={config.get(name)}" for name in changed)
        flags = " ".join(f"--{name.replace('_', '-')} {saved.config.get(name)}" for name in changed)
        raise FingerprintError(
            f"the checkpoint of step {saved.step} was trained with {then}, this run has {now}, "
            f"which changes the order of records. Resume with {flags} ({then} in the "
            "TrainerConfig), or begin in another --workdir (workdir): --init-from "
            f"{config['workdir']} (a WarmStart) keeps the parameters."
        ) from error
