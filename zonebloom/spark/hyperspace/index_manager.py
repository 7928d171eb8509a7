"""IndexManager: manage named indices with an interface like Hyperspace's.

A managed index is one index for each column in the catalog of the data, named ``<name>.<column>``,
with a global filter. Each action is one commit to the catalog, or writes one document:

    create               writes the document, and then commits the filters
    refresh, optimize    make one commit
    delete, restore      write the document anew
    vacuum               drops the filters in one commit, and then removes the document

A process may therefore die at any time. If `create_index` dies between its two steps, there is a
document of an index that DOESNOTEXIST; a refresh with mode "full" builds it.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zonebloom.base import arguments
from zonebloom.base.notices import collected_warnings
from zonebloom.base.progress import ProgressOption, require_progress
from zonebloom.building.builder import Builder, Engine
from zonebloom.building.request import IndexSpec, require_encrypted_index, size_global_filter
from zonebloom.building.segments import compact_indices, drop_indices
from zonebloom.catalog.coverage import measure_drift
from zonebloom.catalog.model import DEFAULT_KIND, RETENTION
from zonebloom.errors import (
    CommitConflict,
    EngineError,
    IndexExists,
    InvalidArgument,
    ZoneBloomError,
    without_secrets,
)
from zonebloom.facade.dataset import Dataset
from zonebloom.facade.indices import refresh_indices
from zonebloom.index.global_filter import GlobalFilterSize
from zonebloom.index.kinds import index_kind
from zonebloom.sbbf.sizing import validate_target
from zonebloom.spark.explaining import explain
from zonebloom.spark.jobs import spark_engine
from zonebloom.spark.managed_indices import (
    Documents,
    ManagedIndex,
    State,
    require_name,
)
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.pruning.explanation import Explanation, Note, PruningResult, Reason
from zonebloom.spark.pruning.index_lookup import IndexDir, IndexLookup
from zonebloom.spark.pruning.jvm_scan import JvmScan
from zonebloom.spark.pruning.optimizer_rule import jvm_plans, with_index
from zonebloom.spark.pruning.prune import disable, enable
from zonebloom.spark.relation import scala_items
from zonebloom.spark.session_settings import is_case_sensitive, system_path
from zonebloom.spark.session_state import session_state
from zonebloom.spark.versions import (
    from_jvm,
    is_classic,
    java_frame,
    query_execution,
    spark_context,
)
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import absolute_path, plain_path, split_path

__all__ = ["BFIndexConfig", "IndexManager"]


@dataclass(frozen=True, slots=True)
class BFIndexConfig:
    """The configuration of an index that `IndexManager.create_index` builds.

    Parameters
    ----------
    name : str
        Name of the index, unique in the system folder and without a dot.
    columns : list of str
        Each column gets its own filters; combinations of columns are not indexed. Leaves of
        structs are written as "a.b".
    expected_num_items : int, optional
        Number of distinct values of a column in the whole dataset, which determines the size of
        its global filter. The default is the number of rows.
    fpp : float
        Target false positive probability of the global filters, between 0 and 1. The filters of
        zones use Lance's defaults.

    Raises
    ------
    InvalidArgument

    Examples
    --------
    >>> zs.BFIndexConfig("by_id", ["id", "customer"], expected_num_items=3000).fpp
    0.01
    """

    name: str
    columns: Sequence[str]
    expected_num_items: int | None = None
    fpp: float = 0.01

    def __post_init__(self) -> None:
        require_name(self.name)
        object.__setattr__(
            self, "columns", tuple(arguments.require_name_list(self.columns, "columns"))
        )
        if not self.columns:
            raise InvalidArgument("columns is empty; name at least one")
        num_items = 1 if self.expected_num_items is None else self.expected_num_items
        validate_target(num_items, self.fpp, ("expected_num_items", "fpp"))


def _with_camel_case_names(cls: type[IndexManager]) -> type[IndexManager]:
    """Give the methods of a class their names in camel case too, as Hyperspace spells them."""
    for name in dir(cls):
        if "_" in name and not name.startswith("_"):
            first, *others = name.split("_")
            setattr(cls, first + "".join(map(str.capitalize, others)), getattr(cls, name))
    return cls


@_with_camel_case_names
class IndexManager:
    """A manager of named indices over Parquet files that Spark reads.

    Methods also have their names in camel case, as in Hyperspace's Python API: ``createIndex`` is
    ``create_index``, with the same parameters.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect. Two keys of its conf are read at each call, also with the prefix
        ``spark.``, without which ``spark-submit --conf`` accepts no key: ``zonebloom.system.path``
        is the folder of the documents of indices, by default ``zonebloom_indexes`` in
        ``spark.sql.warehouse.dir``. If ``zonebloom.index.hybridscan.enabled`` is false, queries
        ignore an index of files to which others were added, or of which some changed.
    index_dir : path, optional
        Folder of new indices and of those that queries use, if they should not be beside the data.
    encryption : Encryption, optional
        Keys of the indices, as `zonebloom.dataset` takes them. New indices are encrypted, and
        unencrypted ones are not used. Build tasks get the keys, but no conf, plan or document
        contains them.

    Raises
    ------
    EngineError
        If ``spark`` is no session.

    Examples
    --------
    >>> spark.conf.set("zonebloom.system.path", "managed")
    >>> manager = zs.IndexManager(spark)
    >>> manager.create_index("orders", zs.BFIndexConfig("by_id", ["id"]))
    >>> manager
    <zonebloom.IndexManager ...managed: by_id (ACTIVE)>
    >>> query = spark.read.parquet("orders").where("id = 42")
    >>> manager.explain(query)
    ZoneBloomExplanation: 1 of 3 files kept
      Relation file:...orders
        filter: id = 42
        indices: id_idx, by_id.id
        files: 1 of 3 kept, 9.5 kB of 28.6 kB
    >>> manager.apply(query).count()
    1
    >>> manager.refresh_index("by_id", "incremental")
    >>> manager.delete_index("by_id")
    >>> manager.vacuum_index("by_id")
    >>> manager
    <zonebloom.IndexManager ...managed: no index>
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        index_dir: IndexDir = None,
        encryption: Encryption | None = None,
    ):
        spark_context(spark)
        self._spark = spark
        self._index_dir = index_dir
        # It keeps the catalogs and files that queries opened.
        self._lookup = IndexLookup(spark, index_dir, encryption)

    def create_index(
        self,
        df: DataFrame | str | os.PathLike[str],
        config: BFIndexConfig,
        *,
        progress: ProgressOption = None,
    ) -> None:
        """Build an index with filters of the zones and a global filter for each column.

        Parameters
        ----------
        df : DataFrame or path
            An unchanged ``spark.read.parquet(path)`` of all files of one folder, or the path. Over
            Spark Connect give the path, because Connect does not show what a frame reads.
        config : BFIndexConfig
        progress : bool or callable, optional
            True for a progress bar, or a function that gets the rows done and all rows.

        Raises
        ------
        InvalidArgument, ColumnNotFound, UnsupportedType, IndexExists, CorruptIndex, NoFragments
            Raised before anything but footers is read.
        FragmentUnreadable, SchemaMismatch, EngineError, CommitConflict
            Nothing is left behind then.
        """
        arguments.require_instance(config, BFIndexConfig, "config")
        index_dir = None if self._index_dir is None else os.fspath(self._index_dir)
        encryption = self._lookup.encryption
        ds, path = open_managed_source(df, index_dir, self._spark, encryption, config.columns)
        ds.opened.warn_if_first_index_is_inside()
        columns = resolve_columns(ds, config.columns, is_case_sensitive(self._spark))
        size = size_global_filter(ds.opened, config.expected_num_items, config.fpp)
        managed = ManagedIndex(
            config.name,
            path=path,
            index_dir=ds.index_dir,
            columns=columns,
            expected_num_items=size.num_items,
            fpp=size.probability,
        )
        catalog, documents = ds.opened.catalog, self._documents()
        existing = documents.get(config.name)
        if existing is not None:
            hint = (
                ", deleted: restore it or vacuum it first"
                if existing.is_deleted
                else (
                    ": if its build was interrupted, and no process builds it now, refresh it with "
                    "mode='full'"
                )
            )
            raise IndexExists(
                f"there is an index {config.name!r} already{hint}; or give another name"
            )
        existing_indices = catalog.latest().indices
        used_names = [name for name in managed.indices.values() if name in existing_indices]
        if used_names:
            raise IndexExists(
                f"the catalog in {catalog.folder} has an index {used_names[0]!r} already, which "
                "this manager does not know: it was made by hand, or by a manager with another "
                "system path. Give another name, or call drop_index on the dataset if nobody uses "
                "it"
            )
        require_encrypted_index(ds.opened)
        if not documents.create(managed):
            raise CommitConflict(f"another manager created index {config.name!r} meanwhile")
        try:
            self._build(documents, ds, managed, progress, is_new=True)
        except BaseException:
            # The first error is raised. A document that is left can be vacuumed. Another manager
            # may have built the index meanwhile, by a full refresh.
            with contextlib.suppress(OSError, ZoneBloomError):
                if documents.state(managed) == State.DOESNOTEXIST:
                    documents.remove(config.name)
            raise

    def refresh_index(
        self, name: str, mode: str = "full", *, progress: ProgressOption = None
    ) -> None:
        """Update an index to the files as they are now.

        Parameters
        ----------
        name : str
        mode : {"full", "incremental", "quick"}
            "full" rebuilds the index. "incremental" reads only files that were added or changed,
            and removes deleted ones. "quick" reads only files that were added. Changed files stay
            unindexed, so queries read them whole until a refresh with another mode.
        progress : bool or callable, optional

        Raises
        ------
        InvalidArgument, IndexNotFound, InvalidState, CorruptIndex, CommitConflict, SchemaMismatch
        NoFragments, FragmentUnreadable, EngineError
            The index is then unchanged.
        """
        arguments.require_choice(mode, "mode", ("full", "incremental", "quick"))
        require_progress(progress)
        documents = self._documents()
        managed = documents.require(name, is_deleted=False, hint="call restore_index first")
        ds = documents.open(managed)
        if mode == "full":
            self._build(documents, ds, managed, progress, is_new=False)
            return
        documents.require_indices(managed, "refresh it with mode='full'")
        refresh_indices(
            ds.opened,
            list(managed.indices.values()),
            retention=RETENTION,
            repair=False,
            spark=self._engine(),
            progress=progress,
            only_appended=mode == "quick",
        )

    def optimize_index(self, name: str, mode: str = "quick") -> None:
        """Merge the segments that refreshes added. It reads no data.

        Parameters
        ----------
        name : str
        mode : {"quick", "full"}
            "quick" merges the small segments. "full" merges all segments into one.

        Raises
        ------
        IndexNotFound, InvalidState, CorruptIndex
        """
        arguments.require_choice(mode, "mode", ("quick", "full"))
        documents = self._documents()
        managed = documents.require(name, is_deleted=False, hint="call restore_index first")
        documents.require_indices(managed, "refresh it with mode='full'")
        names = list(managed.indices.values())
        compact_indices(documents.catalog(managed), names, everything=mode == "full")

    def delete_index(self, name: str) -> None:
        """Make all queries ignore an index until `restore_index`.

        This concerns the sessions with the same system folder. This and the following methods raise
        IndexNotFound, InvalidState, or CorruptIndex if the document cannot be read.
        """
        documents = self._documents()
        managed = documents.require(name, is_deleted=False, hint="it is deleted already")
        documents.replace(replace(managed, is_deleted=True))

    def restore_index(self, name: str) -> None:
        """Undo `delete_index`."""
        documents = self._documents()
        managed = documents.require(name, is_deleted=True, hint="there is nothing to restore")
        documents.require_indices(managed, "vacuum it and create it again")
        documents.replace(replace(managed, is_deleted=False))

    def vacuum_index(self, name: str) -> None:
        """Remove a deleted index with its filters. This cannot be undone."""
        documents = self._documents()
        managed = documents.require(name, is_deleted=True, hint="call delete_index first")
        drop_indices(documents.catalog(managed), managed.indices.values())
        documents.remove(name)

    # Statistics

    def indexes(self) -> DataFrame:
        """Return a frame with one row for each index.

        It has the columns of Hyperspace's IndexStatistics and more. Source files are the indexed
        files. Appended and deleted files are the differences to the current files; a rewritten
        file counts as both.
        """
        documents = self._documents()
        return self._statistics(documents, documents.all())

    def index(self, name: str) -> DataFrame:
        """Return a frame with the row of one index.

        Raises
        ------
        IndexNotFound, CorruptIndex
        """
        documents = self._documents()
        return self._statistics(documents, [documents.require(name)])

    def _statistics(self, documents: Documents, managed_indices: list[ManagedIndex]) -> DataFrame:
        rows = list(statistics_rows(managed_indices, documents))
        return self._spark.createDataFrame(rows, STATISTICS_SCHEMA)

    def __repr__(self) -> str:
        documents = self._documents()
        texts = [f"{m.name} ({documents.state(m)})" for m in documents.all()]
        return f"<zonebloom.IndexManager {documents.path}: {', '.join(texts) or 'no index'}>"

    # Queries

    def apply(self, df: DataFrame) -> DataFrame:
        """Make a query skip files that its filters exclude, as `zonebloom.spark.prune` does.

        The query returns the same rows from fewer files.

        Warns
        -----
        IndexNotUsedWarning
            If an index cannot be used.
        StaleIndexWarning
            If files changed since they were indexed. They are read.
        """
        return with_index(df, self._lookup.ask)

    def explain(
        self,
        df: DataFrame,
        verbose: bool = False,
        redirectFunc: Callable[[str], Any] = print,  # noqa: N803
    ) -> None:
        """Print which files of a query are read, and why no more are skipped.

        It runs no Spark job but those that compute small sides of joins. If ``verbose`` is set,
        it also prints Spark's plan with the indices. ``redirectFunc`` gets the text in place of
        `print`.
        """
        text = io.StringIO()
        print(self.why_not(df), file=text)
        if verbose:
            # explain() is the only public way to get a plan's text, and it prints the text.
            with contextlib.redirect_stdout(text):
                self.apply(df).explain(mode="simple")
        redirectFunc(text.getvalue().rstrip())

    def why_not(self, df: DataFrame, index_name: str = "", extended: bool = False) -> Explanation:
        """Return which indices are used for a query, and why not others, or not the named one.

        Programs use ``.relations`` and ``.reasons``; `str` and HTML show a text. ``extended`` is
        accepted as by Hyperspace: the text always has all reasons.

        Raises
        ------
        IndexNotFound, CorruptIndex
        """
        documents = self._documents()
        chosen = [documents.require(index_name)] if index_name else documents.all()
        lookup = IndexLookup(self._spark, self._index_dir, self._lookup.encryption)

        def ask(scan: JvmScan) -> PruningResult:
            # The notes of the explanation say what the warnings would say.
            return replace(lookup.ask(scan), warnings=())

        explanation = explain(with_index(df, ask))
        roots = [root for relation in explanation.relations for root in relation.roots]
        chosen = [managed for managed in chosen if index_name or _covers(managed, roots)]
        notes = _notes_on_unused(documents, chosen)
        return replace(explanation, notes=(*notes, *explanation.notes))

    def enable(self) -> None:
        """Use the indices in every query of a classic session, as `zonebloom.spark.enable` does."""
        enable(self._spark, index_dir=self._index_dir, encryption=self._lookup.encryption)

    def disable(self) -> None:
        """Undo `enable`, as `zonebloom.spark.disable` does."""
        disable(self._spark)

    def is_enabled(self) -> bool:
        """Return whether the queries of the session use indices without `apply`."""
        return session_state(self._spark).has_rule

    # Documents

    def _documents(self) -> Documents:
        return Documents(system_path(self._spark), self._spark, self._lookup.encryption)

    # Builds

    def _build(
        self,
        documents: Documents,
        ds: Dataset,
        managed: ManagedIndex,
        progress: ProgressOption,
        *,
        is_new: bool,
    ) -> None:
        """Build a new index, or rebuild one."""
        size = GlobalFilterSize(managed.expected_num_items, managed.fpp)
        parameters = index_kind(DEFAULT_KIND).check_parameters({})
        specs = [
            IndexSpec(name, ds.opened.column(column), parameters, size)
            for column, name in managed.indices.items()
        ]
        Builder(ds.opened).build(specs, not is_new, self._engine(), progress)
        if documents.get(managed.name) is None:
            drop_indices(ds.opened.catalog, managed.indices.values())
            raise CommitConflict(f"index {managed.name!r} was vacuumed while it was built")

    def _engine(self) -> Engine:
        return spark_engine(self._spark)


def _covers(managed: ManagedIndex, roots: list[str]) -> bool:
    """Return whether an index is on a root of a relation, or on a folder below or above one."""
    path = managed.path.rstrip("/") + "/"
    folders = [plain_path(root).rstrip("/") + "/" for root in roots]
    return any(path.startswith(folder) or folder.startswith(path) for folder in folders)


def _notes_on_unused(documents: Documents, managed_indices: list[ManagedIndex]) -> Iterator[Note]:
    """Yield the reasons why managed indices are used by no query."""
    for managed in managed_indices:
        text = f"index {managed.name!r} is not used: "
        try:
            # The note says what a warning would say.
            with collected_warnings():
                latest = documents.catalog(managed).latest()
        except (ZoneBloomError, OSError, pa.ArrowException) as error:
            yield Note(Reason.DATA_UNREADABLE, f"{text}{error}")
            continue
        if managed.is_deleted:
            yield Note(Reason.NOT_ACTIVE, f"{text}it is {State.DELETED}")
        elif latest.locked_reason:
            yield Note(Reason.DATA_UNREADABLE, f"{text}{latest.locked_reason}")
        elif missing := managed.missing_from(latest.indices):
            text += f"{', '.join(missing)} is not in {managed.index_dir}"
            yield Note(Reason.MISSING, f"{text}; refresh it with mode='full'")


# The data of an index: a folder of Parquet files, given by a path or by a frame that reads them


def open_managed_source(
    source: DataFrame | str | os.PathLike[str],
    index_dir: str | None,
    spark: Any,
    encryption: Encryption | None,
    columns: Sequence[str] = (),
) -> tuple[Dataset, str]:
    """Open the files of a DataFrame or a path as a dataset with some columns.

    Return it with a path to reopen it.
    """
    if isinstance(source, str | os.PathLike):
        path = plain_path(absolute_path(os.fspath(source)))
        # In Azure's URIs the text before @ is a container and no password.
        is_azure = split_path(path)[0] in ("abfs", "abfss", "wasb", "wasbs")
        if not is_azure and without_secrets(path) != path:
            raise InvalidArgument(
                f"{path} contains credentials, which would be stored in the document; set "
                "fs.s3a.access.key and the like in the session"
            )
        return open_dataset(path, spark, index_dir, encryption, columns), path
    roots = _root_paths(source)
    uris = from_jvm(source.sparkSession, java_frame(source).inputFiles())
    files = {plain_path(uri, encoded=True) for uri in uris}
    if not files:
        raise InvalidArgument("the DataFrame reads no file; write some first")
    dataset_text = ""
    folders = roots if len(roots) == 1 else list({posixpath.dirname(file) for file in files})
    if len(folders) == 1:
        ds = open_dataset(folders[0], spark, index_dir, encryption, columns)
        if set(map(_path_in_filesystem, ds.files)) == set(map(_path_in_filesystem, files)):
            return ds, folders[0]
        dataset_text = f" of the {len(ds.files):,} in {folders[0]}"
    raise InvalidArgument(
        f"the DataFrame reads {len(files):,} files{dataset_text}; an index is over all files of "
        "one folder, or over one file: read the folder, or make an index for each"
    )


def _path_in_filesystem(path: str) -> str:
    return split_path(path)[1]


def _root_paths(frame: Any) -> list[str]:
    """Return the root paths that a frame reads. Raise `InvalidArgument` for other frames."""
    if not hasattr(frame, "sparkSession"):
        raise arguments.invalid_value(frame, "df", "give a DataFrame, or the path of a folder")
    if not is_classic(frame.sparkSession):
        raise InvalidArgument(
            f"Spark Connect does not show what a {type(frame).__name__} reads; give the path"
        )
    plan = query_execution(frame).analyzed()
    while plan.nodeName() in ("SubqueryAlias", "View"):
        plan = plan.child()
    try:
        relation = jvm_plans(frame.sparkSession).relation(plan)
    except EngineError as error:
        text = f"it is not known what the frame reads ({error}); give the path"
        raise InvalidArgument(text) from None
    if relation is None:
        raise InvalidArgument(
            f"the frame is a {plan.nodeName()}, not just a read of Parquet files; give "
            "spark.read.parquet(path) as it is, or the path itself"
        )
    return [plain_path(root.toString()) for root in scala_items(relation.location().rootPaths())]


def resolve_columns(ds: Dataset, names: Sequence[str], case_sensitive: bool) -> tuple[str, ...]:
    """Return the names of columns as the files spell them."""
    columns: list[str] = []
    for name in names:
        column = ds.opened.column(name, not case_sensitive).name
        if column in columns:
            raise InvalidArgument(f"column {column!r} is given twice; name each once")
        columns.append(column)
    return tuple(columns)


# Statistics, with Hyperspace's names

STATISTICS_SCHEMA = (
    "name string, indexedColumns array<string>, indexLocation string, state string, kind string, "
    "numIndexFiles bigint, sizeIndexFiles bigint, numSourceFiles bigint, sizeSourceFiles bigint, "
    "numAppendedFiles bigint, sizeAppendedFiles bigint, numDeletedFiles bigint, "
    "sizeDeletedFiles bigint, indexContentPaths array<string>, sourcePath string, "
    "expectedNumItems bigint, fpp double, numZones bigint, globalFilterBytes bigint, "
    "createdAt string, message string"
)


def statistics_rows(
    chosen: Iterable[ManagedIndex], documents: Documents
) -> Iterator[tuple[Any, ...]]:
    """Yield a row of `STATISTICS_SCHEMA` for each index. It has nulls if the data is unreadable."""
    for managed in chosen:
        names, message = managed.indices.values(), ""
        changes: tuple[int | None, ...] = (None,) * 6
        try:
            opened = documents.open(managed).opened
            catalog, latest = opened.catalog, opened.version
            drift = measure_drift(latest, names, opened.look().fragments)
        except (ZoneBloomError, OSError) as error:
            message = f"the data cannot be read: {error}"
            catalog = documents.catalog(managed)
            latest = catalog.latest()
        else:
            parts = drift.indexed, drift.appended, drift.deleted
            changes = tuple(figure for part in parts for figure in (len(part), sum(part)))
        entries = [latest.indices[name] for name in names if name in latest.indices]
        files = catalog.referenced_files(
            latest.with_indices({entry.name: entry for entry in entries})
        )
        state = str(managed.state_in(latest.indices))
        yield (
            *(managed.name, list(managed.columns), catalog.folder, state, "BloomFilter"),
            *(len(files), sum(files.values()), *changes, sorted(files)),
            *(managed.path, managed.expected_num_items, managed.fpp),
            sum(segment.num_zones for entry in entries for segment in entry.segments),
            sum(e.global_filter.num_bytes for e in entries if e.global_filter is not None),
            min((entry.created_at for entry in entries), default=None),
            message,
        )
