"""Executes a training plan on one rank: builds, trains, measures and saves the model.

The collectives, by which ranks communicate, are a parameter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, assert_never, cast

import torch
from torch import nn

from conf.errors import ConfigError, DataError, NightrankError
from conf.process import keep_freed_memory
from conf.types import ModelConfig, Split, Train
from storage import file_io
from storage.feature_spec import FeatureSpec
from storage.id_counts import IdCounts
from training.checkpoints import Checkpoints, open_trained, save_trained
from training.checkpoints.blocks import Stateful
from training.checkpoints.stored import StateMismatchError, StoredState
from training.collectives import Collectives, LocalCollectives, gather_json, raise_on_all_ranks
from training.data.batch import RowsOfStep
from training.data.item_catalogue import read_catalogue
from training.data.item_comparison import ItemComparison
from training.data.loader import Loader
from training.data.negative_sampler import NegativeSampler
from training.data.sharding import DataFile, plan_shards, row_groups, shards_of_rank
from training.data.unknown_ids import RowsWithUnknownIds, UnknownIds
from training.device import choose_device
from training.embeddings.placement import Tiers, choose_tiers, describe_tiers
from training.embeddings.rows import RowBlock
from training.embeddings.table import set_kernels
from training.kernels.choice import use_kernels
from training.loop.evaluate import Validation, chosen_metrics, evaluate
from training.loop.kept_steps import EarlyStopping, Prune, SaveCheckpoints, StopAtStep, keep_best, metric_of
from training.loop.loss_check import LossCheck
from training.loop.progress_output import LogLines, Meter, ReportProgress, StepProfiler
from training.loop.train_step import Trainer
from training.loop.training_loop import Callback, TrainingLoop, TrainingResult
from training.loop.training_plan import TrainPlan
from training.models import build_model, planned_tables
from training.models.click_model import PenalizedModel
from training.models.factorization import VectorModel
from training.models.inputs import id_columns
from training.models.layers import RandomLayer
from training.models.sequence_model import SequenceModel
from training.progress import Report
from training.registry.model_json import OF_PROBABILITIES
from training.registry.search import write_pruned
from training.settings import with_item

log = logging.getLogger("nightrank.training")
_HELD_OUT: tuple[Split, ...] = ("validation", "test")


def run_plan(
    plan: TrainPlan,
    collectives: Collectives,
    device: torch.device,
    *,
    report: Report | None = None,
    at_checkpoint: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Trains, measures and saves the model of a plan. Also trains and measures the plan's baselines.

    Args:
        plan: the plan, the same on all ranks.
        collectives: this rank's collectives.
        device: this rank's device.
        report: receives the history entries of every training run, with labels; see `ReportProgress`.
        at_checkpoint: called on every rank when a checkpoint is being written. It may raise an error to end
            the training at this point.

    Returns:
        The content of model.json. If another attempt has already published the same version, the result is
        the model.json of that attempt. If the training is pruned, there is no model, and the result is the
        record of the pruned training run.

    Raises:
        ConfigError, DataError: the model's configuration, the data or the parent model is not valid.
    """
    rank = _Rank(plan, collectives, device, report, _kernels_of_ranks(plan.train, collectives, device))
    held_out = {
        split: rank.loader(plan.splits[split], shuffled=False) for split in _HELD_OUT if split in plan.splits
    }
    model = rank.build(plan.model)
    if device.type == "cpu":
        keep_freed_memory()
    trainer = Trainer(model, plan.train, collectives, rank.rows_of_step(plan.train_files, model))
    if plan.parent_path is not None:
        warm_start(trainer, plan.spec, *open_trained(plan.parent_path, collectives))
    with Checkpoints(plan.checkpoint_path, collectives, plan.train.keep_checkpoints) as checkpoints:
        result = rank.train(trainer, held_out.get("validation"), checkpoints, at_checkpoint)
        checkpoints.wait()
        if result.pruned:
            return _publish_pruned(plan, result, collectives, checkpoints)
        kept, metrics = rank.keep_best(trainer, result.history, held_out, checkpoints)
    baselines = {name: rank.measure(rank.train_baseline(name), held_out) for name in plan.train.baselines}
    description = {
        **plan.description,
        **_meaningful(plan, {"metrics": metrics, "baselines": baselines, "history": result.history}),
        "train_rows": sum(file.rows for file in plan.train_files),
        "steps": result.steps,
        "seconds": result.seconds,
        "stopped": result.stopped,
        "kept": kept,
        "num_ranks": collectives.size,
        "created_at": file_io.utc_now(),
    }
    published = save_trained(plan.model_path, trainer, description, collectives)
    checkpoints.delete()
    return published


def _publish_pruned(
    plan: TrainPlan, result: TrainingResult, collectives: Collectives, checkpoints: Checkpoints
) -> dict[str, Any]:
    """Writes and returns the record of a pruned training run, and deletes its checkpoints.

    Raises:
        InfrastructureError: the record cannot be written.
    """
    record = {
        **plan.description,
        **_meaningful(plan, {"history": result.history}),
        "steps": result.steps,
        "seconds": result.seconds,
        "stopped": result.stopped,
        "num_ranks": collectives.size,
        "created_at": file_io.utc_now(),
    }
    failure = None
    try:
        if collectives.rank == 0:
            write_pruned(plan.model_path, record)
    except NightrankError as error:
        failure = error
    raise_on_all_ranks(collectives, failure)
    checkpoints.delete()
    return record


def _kernels_of_ranks(train: Train, collectives: Collectives, device: torch.device) -> bool:
    """Returns whether the ranks use Triton's kernels: only if all ranks can. All ranks get the same result.

    Kernels and torch's operators round differently. If some ranks used kernels and others did not, the ranks'
    copies of a table row would no longer be equal.

    Raises:
        ConfigError: `train.kernels` is `triton`, but a rank cannot use the kernels.
    """
    usable, problem = False, None
    try:
        usable = use_kernels(train.kernels, device, "train.kernels")
    except ConfigError as error:
        problem = error
    raise_on_all_ranks(collectives, problem)
    can = gather_json(collectives, usable)
    if any(can) and not all(can) and can.index(True) == collectives.rank:
        log.warning(
            "all ranks use torch's operators, because only the ranks %s can use Triton's kernels (%s)",
            [rank for rank, of_rank in enumerate(can) if of_rank],
            f"train.kernels={train.kernels}",
        )
    return all(can)


def _meaningful(plan: TrainPlan, values: dict[str, Any]) -> dict[str, Any]:
    """Returns nested metrics, in which metrics that the model cannot have are replaced by None.

    If the model's scores are not probabilities, it has no log loss and no calibration.
    """

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: None if key in OF_PROBABILITIES else kept(inner) for key, inner in value.items()}
        return [kept(inner) for inner in value] if isinstance(value, list) else value

    return values if plan.description.get("scores") != "ranking" else cast(dict[str, Any], kept(values))


def train_in_process(plan: TrainPlan, report: Report | None = None) -> dict[str, Any]:
    """Trains on one rank in the current process, without Spark and Horovod.

    Args:
        plan: what to train, on which files, and where to save the model.
        report: called with the entries of the history; None for no reports.
    """
    device = choose_device(plan.train.device, 0, "train.device")
    return run_plan(plan, LocalCollectives(), device, report=report)


@dataclass(frozen=True)
class _Rank:
    """One rank that executes a plan. It builds models, loaders and callbacks.

    `kernels` says whether this rank uses Triton's kernels.
    """

    plan: TrainPlan
    collectives: Collectives
    device: torch.device
    report: Report | None
    kernels: bool

    def build(self, config: ModelConfig) -> nn.Module:
        """Builds a new model on this rank's device."""
        train = self.plan.train
        spec, counts = self.plan.spec, self.plan.id_counts
        tiers = plan_tiers(config, spec, train, counts, self.collectives, self.device)
        model = build_model(config, spec, train.seed, train.embeddings, self.collectives, tiers=tiers)
        model = model.to(self.device)
        set_kernels(model, self.kernels)
        if isinstance(model, SequenceModel):
            model.shares_histories = train.shuffle == "users"
        return model

    def loader(self, files: Sequence[DataFile], *, shuffled: bool) -> Loader:
        """Returns this rank's loader for some files."""
        train = self.plan.train
        group_rows = [group.rows for group in row_groups(files)]
        return Loader(
            files,
            plan_shards(group_rows, train.num_shards, train.global_batch_size),
            shards_of_rank(train.num_shards, self.collectives.rank, self.collectives.size),
            self.plan.spec,
            train.seed if shuffled else None,
            self.plan.model.multi_hot,
            self.device,
            train.reading,
            with_row_keys=shuffled and (train.only_positive_rows or bool(train.unknown_share)),
            kernel=self.kernels,
            by_user=shuffled and train.shuffle == "users",
        )

    def rows_of_step(self, files: Sequence[DataFile], model: nn.Module) -> RowsOfStep | None:
        """Returns an object that turns a batch of the loader into the rows of a step.

        Returns None if the batches of the loader already are the rows of a step.
        """
        plan, train = self.plan, self.plan.train
        unknown = None
        if train.unknown_share:
            columns = id_columns(plan.spec, plan.model.multi_hot)
            unknown = UnknownIds.of(train.unknown_share, train.seed, columns, self.device)
        selected = self._selected_rows(files, model, unknown) if train.only_positive_rows else None
        return RowsWithUnknownIds(unknown, selected) if unknown else selected

    def _selected_rows(
        self, files: Sequence[DataFile], model: nn.Module, unknown: UnknownIds | None
    ) -> RowsOfStep:
        """Returns an object that selects the positive rows of a batch.

        It also adds drawn negatives, or the items with which the loss compares the rows.
        """
        plan, train = self.plan, self.plan.train
        paths = {file.path for file in files}
        others = [file for file in plan.splits["train"] if file.path not in paths and train.negatives]
        multi_hot = plan.model.multi_hot
        catalogue = read_catalogue(
            files, others, plan.spec, multi_hot, train.reading, self.collectives, self.device
        )
        shards = shards_of_rank(train.num_shards, self.collectives.rank, self.collectives.size)
        if train.negatives is None:
            return ItemComparison(catalogue, train, plan.spec, multi_hot, len(shards), unknown)
        # A loss that compares a positive row with its negatives does not change if a constant is added to all
        # logits. So it can use dot products of user and item vectors, which lack the model's constant bias. A
        # model with random layers (such as dropout) in its item part cannot use these products, because its
        # random masks would depend on the number of ranks.
        random = [layer for layer in model.modules() if isinstance(layer, RandomLayer) and layer.of_items]
        of_vectors = (
            train.loss_settings.compares == "groups"
            and isinstance(model, VectorModel)
            and not isinstance(model, PenalizedModel)
            and not random
        )
        return NegativeSampler(
            *(catalogue, train.negatives, train.seed, plan.spec, multi_hot, len(shards), unknown),
            of_vectors=of_vectors,
        )

    def train(
        self,
        trainer: Trainer,
        validation: Loader | None,
        checkpoints: Checkpoints,
        at_checkpoint: Callable[[], None] | None,
    ) -> TrainingResult:
        """Trains the model of the plan.

        If there are checkpoints, the training resumes from the latest checkpoint. If there is no loader of
        the validation split, the model is not measured during the training.
        """
        plan, train = self.plan, self.plan.train
        loader = self.loader(plan.train_files, shuffled=True)
        loss_check = self._loss_check(loader, plan.train_files)
        evaluations: list[Callback] = []
        if validation is not None:
            measure = partial(evaluate, trainer.model, validation, self.collectives, self.device)
            evaluations = [
                Validation(measure, train.evaluate_every_steps, at_epoch_ends=self._keeps_best),
                EarlyStopping(train.stop_at),
                Prune(plan.pruning),
            ]
        callbacks = [
            SaveCheckpoints(
                checkpoints,
                train.checkpoint_every_steps,
                loss_check.check_pending,
                at_checkpoint,
                metric_of(train) if self._keeps_best else None,
            ),
            StepProfiler(train.profile, f"{plan.checkpoint_path}.profile", self.collectives.rank),
            loss_check,
            *self._progress(plan.model.architecture),
            *evaluations,
            StopAtStep(plan.last_step),
        ]
        return TrainingLoop(trainer, train, self.device, callbacks).fit(loader)

    def train_baseline(self, architecture: str) -> nn.Module:
        """Trains a model with an architecture's default settings on all train files, without checkpoints."""
        plan = self.plan
        config = ModelConfig(architecture=architecture, multi_hot=plan.model.multi_hot)
        model = self.build(with_item(config, plan.items))
        if self._leads:
            log.info("baseline %s", architecture)
        loader = self.loader(plan.splits["train"], shuffled=True)
        callbacks = [self._loss_check(loader, plan.splits["train"]), *self._progress(architecture)]
        rows_of_step = self.rows_of_step(plan.splits["train"], model)
        trainer = Trainer(model, plan.train, self.collectives, rows_of_step)
        TrainingLoop(trainer, plan.train, self.device, callbacks).fit(loader)
        return model

    def keep_best(
        self,
        trainer: Trainer,
        history: list[dict[str, Any]],
        held_out: dict[Split, Loader],
        checkpoints: Checkpoints,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Loads the best weights into the trained model, and measures it on each held-out split.

        Returns:
            The entry `kept` of model.json, and the metrics by split.
        """
        after_last_step: dict[str, Any] = {}

        def measure_last() -> dict[str, Any]:
            loader = held_out["validation"]
            after_last_step.update(evaluate(trainer.model, loader, self.collectives, self.device))
            return chosen_metrics(after_last_step)

        measure = measure_last if self._keeps_best else None
        kept = keep_best(trainer, self.plan.train, history, measure, checkpoints)
        known = {}
        if after_last_step and kept["step"] == history[-1]["step"]:
            known = {"validation": after_last_step}
        return kept, {
            split: known.get(split) or evaluate(trainer.model, loader, self.collectives, self.device)
            for split, loader in held_out.items()
        }

    def measure(self, model: nn.Module, loaders: dict[Split, Loader]) -> dict[str, Any]:
        """Returns the metrics of a model on each split."""
        return {
            split: evaluate(model, loader, self.collectives, self.device) for split, loader in loaders.items()
        }

    @property
    def _keeps_best(self) -> bool:
        """Returns whether the model gets the weights of the best evaluation on the validation split."""
        return self.plan.train.keep == "best" and bool(self.plan.splits.get("validation"))

    @property
    def _leads(self) -> bool:
        return self.collectives.rank == 0

    def _progress(self, architecture: str) -> list[Callback]:
        """Returns the callbacks that show progress.

        These are `Meter` on all ranks, `LogLines` on rank 0, and `ReportProgress` if this rank sends its
        progress to the driver.
        """
        train = self.plan.train
        callbacks: list[Callback] = [Meter(self.device, train.log_every_steps)]
        if self._leads:
            callbacks.append(LogLines())
        if self.report is not None:
            callbacks.append(ReportProgress(self.report, architecture, train.global_batch_size))
        return callbacks

    def _loss_check(self, loader: Loader, files: Sequence[DataFile]) -> LossCheck:
        plan = self.plan
        folder = plan.checkpoint_path if plan.saves_bad_rows else None
        return LossCheck(loader, files, plan.model.multi_hot, self.collectives, folder)


# The code below chooses which table rows of a model are on the devices, according to the setting
# `train.embedding_memory`.

# The share of a GPU's free memory that rows may take, if `train.embedding_memory_mib` is not set. The rest is
# for the dense layers, for the vectors of a batch, and for their gradients.
_SHARE_OF_FREE_MEMORY = 0.75


def plan_tiers(
    model: ModelConfig,
    spec: FeatureSpec,
    train: Train,
    counts: IdCounts,
    collectives: Collectives,
    device: torch.device,
) -> Tiers | None:
    """Returns which rows of a model's tables are hot (on a device); None if all rows are on the devices.

    All ranks must call this function, and get the same result. Rank 0 logs which rows are hot.

    Args:
        model: the section `model` of the configuration.
        spec: the features.
        train: the section `train`.
        counts: the location of the counts of ids.
        collectives: the collectives of this rank.
        device: the device of this rank.

    Raises:
        ConfigError: the device is a CPU, and `train.embedding_memory_mib` is not set.
        DataError: the counts cannot be read.
    """
    if train.embedding_memory == "device":
        return None
    if train.embedding_memory != "auto":
        assert_never(train.embedding_memory)
    rank_bytes, problem = _rank_bytes(train, device)
    raise_on_all_ranks(collectives, problem)
    rank_bytes = min(gather_json(collectives, rank_bytes))
    tables = planned_tables(model, spec, train.embeddings, collectives)
    tiers = choose_tiers(tables, counts.read(), rank_bytes, pinned=device.type == "cuda")
    if collectives.rank == 0:
        held = max(sum(table.bytes_of(rank) for table in tables) for rank in range(collectives.size))
        if tiers is None:
            log.info(
                "all embedding rows are on the device: they have %d bytes, and at most %d are allowed",
                held,
                rank_bytes,
            )
        else:
            log.info(
                "embedding rows are on the device and in host memory: at most %d of the %d bytes of a rank "
                "are on the device. According to the value counts, %.2f%% of the lookups read rows on the "
                "device:\n%s",
                rank_bytes,
                held,
                100 * tiers.expected,
                describe_tiers(tables, tiers),
            )
    return tiers


def _rank_bytes(train: Train, device: torch.device) -> tuple[int, ConfigError | None]:
    """Returns how many bytes of table rows this rank's device may hold, or an error if that is unknown."""
    if train.embedding_memory_mib is not None:
        return train.embedding_memory_mib << 20, None
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_FREE_MEMORY), None
    return 0, ConfigError(
        "train.embedding_memory=auto on a CPU needs train.embedding_memory_mib, because jobs can compute "
        "this number only from the free memory of a GPU",
        "set train.embedding_memory_mib, or train.embedding_memory=device",
    )


# The code below starts a training run from the state of its parent, an earlier model whose vocabularies may
# be smaller.
#
# The id of a value never changes, and new ids are appended. So the table rows that the parent has for a
# feature are the first rows of that feature. Each rank reads its rows directly from the parent's files.
#
# The state of the optimizers is copied too. So rows that were trained for a long time continue with small
# updates, and new rows learn with the full learning rate.

# The loss scale is not copied: the precision may have changed, and the scale adapts quickly.
_NOT_COPIED = ("scaler.",)


def warm_start(trainer: Stateful, spec: FeatureSpec, parent: StoredState, parent_spec: FeatureSpec) -> None:
    """Copies a parent's state into a new trainer. Rows of ids that the parent does not have stay unchanged.

    Args:
        trainer: a trainer whose model has the features `spec` and was just initialized.
        spec: the features of this training run.
        parent: the parent's training state on disk.
        parent_spec: the features of the parent.

    Raises:
        DataError: the parent has other features, other layers, or more ids in a feature.
    """
    _require_extension(spec, parent_spec)
    parent_rows = {
        name: [_parent_rows(block, parent_spec.cardinalities) for block in blocks]
        for name, blocks in trainer.row_state().items()
    }
    try:
        state = {name: value for name, value in trainer.state().items() if not name.startswith(_NOT_COPIED)}
        parent.load(state, parent_rows, unread=_NOT_COPIED)
    except StateMismatchError as error:
        raise _mismatch(str(error)) from error


def _parent_rows(block: RowBlock, cardinalities: Sequence[int]) -> RowBlock:
    """Returns the first rows of a block of table rows: those that the parent model also has."""
    rows = -(-max(cardinalities[block.feature] - block.first, 0) // block.step)
    return replace(block, rows=min(rows, block.rows))


def _require_extension(spec: FeatureSpec, parent: FeatureSpec) -> None:
    """Raises DataError if the parent model has other features, or a feature with a larger cardinality."""
    features = [(feature.name, feature.kind) for feature in spec.features]
    parent_features = [(feature.name, feature.kind) for feature in parent.features]
    if features != parent_features:
        changed = sorted({name for name, _ in set(features) ^ set(parent_features)}) or "their order"
        raise _mismatch(f"features differ from the parent's: {changed}")
    for feature, old in zip(spec.embedded, parent.embedded, strict=True):
        if int(feature.cardinality or 0) < int(old.cardinality or 0):
            raise _mismatch(
                f"{feature.name} has {feature.cardinality} ids, fewer than the {old.cardinality} ids of the "
                "parent, so its vocabulary does not extend the parent's"
            )


def _mismatch(problem: str) -> DataError:
    return DataError(
        f"the model cannot start from its parent's weights: {problem}",
        "run build_features with workflow.mode=extend, or pass --set train.retrain.start=fresh",
    )
