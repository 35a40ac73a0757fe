"""Delta Lake and Apache Iceberg tables as participants: phase two appends the files of a batch by one commit of the table.

Tasks write Parquet files into the table's folder, where no reader sees them. The commit that appends them also stores
the number of the batch in the table, as Delta's application transaction or as a property of the Iceberg table: a
repeated phase two finds it there. The table's own clean-up (VACUUM, removal of orphan files) removes files of killed tasks.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from barnabas.errors import InvariantViolated
from barnabas.pipeline import decisions
from barnabas.pipeline.decision_record import BatchDecision, PreparedPart
from barnabas.pipeline.decisions import AppendFiles, CommitResult, ReadTable, TableState
from barnabas.pipeline.errors import PipelineError, writing_to
from barnabas.pipeline.parquet_part import Folder, ParquetPart, StoreFolder, open_folder, part_name
from barnabas.pipeline.two_phase_commit import Part, Task, TwoPhaseCommitSink, drive
from barnabas.runtime.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

# settings and properties of columns of a table whose files need more than their rows, or that forgets application transactions
_DELTA_RULES = ("delta.constraints.", "delta.columnMapping.mode", "delta.setTransactionRetentionDuration")
_DELTA_FIELD_RULES = {"delta.invariants", "delta.generationExpression"}


@contextmanager
def _installed(option: str, place: str) -> Iterator[None]:
    """Converts the error of an import that is missing into a PipelineError."""
    try:
        yield
    except ModuleNotFoundError as error:
        remedy = "install it on driver and executors by: pip install 'barnabas[tables]'"
        raise PipelineError(option, place, remedy, f"needs {error.name}") from error


class TableSink(TwoPhaseCommitSink):
    """A table that exists, is not partitioned, and has exactly the columns of the rows.

    Args:
        sink_id: id of the sink; several sinks may write to one table.
        place: path or name of the table, as in the option.
    """

    option: ClassVar[str]

    def __init__(self, sink_id: str, place: str) -> None:
        self.sink_id = sink_id
        self.place = place
        self.name = f"{self.option} {place}"
        self._appended = 0

    # -- of each format ------------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self) -> TableState:
        """The newest version of the table. Raises PipelineError."""

    @abstractmethod
    def folder(self, table: Any) -> Folder:
        """Where the files of tasks are."""

    @abstractmethod
    def columns(self, table: Any) -> pa.Schema:
        """Columns of the table's files. Raises PipelineError if the table cannot take files as they are."""

    @abstractmethod
    def append(self, table: Any, parts: Sequence[PreparedPart], next_batch: int) -> bool:
        """Appends files and stores `next_batch`, in one commit on top of `table`. False if another commit was faster."""

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def begin(self, task: Task) -> TablePart:
        state = self.read()
        decided = task.start.decision.next_batch if task.start.decision is not None else 0
        if state.next_batch > decided:
            remedy = "stop the other query of this sink id; if it has none, its decisions were lost: choose another id"
            problem = (
                f"has appended batches up to {state.next_batch - 1} to {self.place}, and decided {decided} batches"
            )
            raise PipelineError("sink.id", self.sink_id, remedy, problem)
        columns, folder, name = self.columns(state.version), self.folder(state.version), part_name(task)
        with writing_to(self.option, self.place):
            file = folder.open(name, create=True)
        return TablePart(PreparedPart(self.name, name, "", 0), file, folder, self.option, columns)

    async def pre_commit(self, part: Part) -> PreparedPart:
        if not isinstance(part, TablePart):
            raise InvariantViolated("a part of another participant")
        return await part.prepare()

    # -- the driver ----------------------------------------------------------------------------------------------------

    async def commit(self, handle: PreparedPart, decision: BatchDecision) -> CommitResult:
        """Appends the files of all tasks, with the first of their handles."""
        if self._appended == decision.next_batch:
            return CommitResult.COMMITTED
        parts = tuple(part for part in decision.handles if part.participant == self.name)
        result = await drive(decisions.append_once(parts, decision.next_batch), self._perform)
        if result is CommitResult.COMMITTED:
            self._appended = decision.next_batch
        return result

    async def _perform(self, effect: Any) -> Any:
        if isinstance(effect, ReadTable):
            return self.read()
        if isinstance(effect, AppendFiles):
            table = effect.state.version
            folder = self.folder(table)
            if not all(folder.exists(part.key) for part in effect.parts):
                return CommitResult.LOST
            return CommitResult.COMMITTED if self.append(table, effect.parts, effect.next_batch) else None
        raise InvariantViolated(f"no code performs the effect {effect!r} of the protocol")

    async def abort(self, handle: PreparedPart) -> None:
        self.folder(self.read().version).remove(handle.key)


class TablePart(ParquetPart):
    """One task's file, with the columns of the table."""

    def __init__(self, handle: PreparedPart, file: Any, folder: Folder, option: str, columns: pa.Schema) -> None:
        super().__init__(handle, file, folder, option)
        self._columns = columns

    async def write(self, batch: pa.RecordBatch) -> None:
        names = self._columns.names
        if sorted(batch.schema.names) != sorted(names):
            remedy = f"select the columns of the table: {', '.join(names)}"
            raise PipelineError("columns", ", ".join(batch.schema.names), remedy, "are not those of the table")
        try:
            converted = batch.select(names).cast(self._columns)
        except (ValueError, NotImplementedError) as error:  # Arrow's errors are of these classes
            raise PipelineError("columns", ", ".join(names), "cast them to the table's types", str(error)) from error
        await super().write(converted)


class DeltaSink(TableSink):
    """A table of Delta Lake, at a path or URI."""

    option = "delta.path"

    @property
    def _application(self) -> str:
        return f"barnabas.{self.sink_id}"

    def read(self) -> TableState:
        with _installed(self.option, self.place):
            from deltalake import DeltaTable
            from deltalake.exceptions import TableNotFoundError
        try:
            table = DeltaTable(self.place)
        except TableNotFoundError as error:
            raise PipelineError(self.option, self.place, "create the table first", "is no table") from error
        return TableState(table.transaction_version(self._application) or 0, table)

    def folder(self, table: Any) -> Folder:
        return open_folder(self.place, self.option)

    def columns(self, table: Any) -> pa.Schema:
        import pyarrow as pa

        metadata, schema = table.metadata(), table.schema()
        troubles = [name for name in metadata.configuration if name.startswith(_DELTA_RULES)]
        troubles += [field.name for field in schema.fields if not _DELTA_FIELD_RULES.isdisjoint(field.metadata)]
        troubles += metadata.partition_columns
        if troubles:
            remedy = "write to a table without partitions, constraints, generated columns, column mapping, expiring transactions"
            problem = f"cannot take files as they are ({', '.join(troubles)})"
            raise PipelineError(self.option, self.place, remedy, problem)
        return pa.schema(schema.to_arrow())

    def append(self, table: Any, parts: Sequence[PreparedPart], next_batch: int) -> bool:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        folder, now_ms = self.folder(table), SystemClock().now_ms()
        actions = [
            AddAction(part.key, folder.size(part.key), {}, now_ms, True, json.dumps({"numRecords": part.rows}))
            for part in parts
        ]
        # A blind retry would append the files again, on top of a commit of them by another process.
        once = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(self._application, next_batch)])
        try:
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=once)
        except CommitFailedError:
            if self.read().version.version() == table.version():
                raise
            return False
        return True


class IcebergSink(TableSink):
    """A table of Apache Iceberg in a catalog of pyiceberg.

    Args:
        place: `CATALOG.NAMESPACE.TABLE`.
        catalog: properties of the catalog; those of pyiceberg's configuration count too.
    """

    option = "iceberg.table"

    def __init__(self, sink_id: str, place: str, catalog: Mapping[str, str]) -> None:
        super().__init__(sink_id, place)
        self._catalog = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", **catalog}
        self._property = f"barnabas.batches.{sink_id}"

    def read(self) -> TableState:
        with _installed(self.option, self.place):
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NoSuchTableError
        name, _, table_name = self.place.partition(".")
        try:
            catalog = load_catalog(name, **self._catalog)
        except ValueError:  # its text has all properties, with secrets
            remedy = "give them as options iceberg.catalog.type, iceberg.catalog.uri and so on, or by pyiceberg's configuration"
            raise PipelineError("iceberg.catalog", None, remedy, f"has no usable properties for {name!r}") from None
        try:
            table = catalog.load_table(table_name)
        except NoSuchTableError as error:
            remedy = "create the table first, and name it as CATALOG.NAMESPACE.TABLE"
            raise PipelineError(self.option, self.place, remedy, "is no table") from error
        return TableState(int(table.properties.get(self._property, "0")), table)

    def folder(self, table: Any) -> Folder:
        root = f"{table.location()}/data"
        scheme, netloc, path = table.io.parse_location(root)
        if scheme == "file":
            return open_folder(path, self.option)
        return StoreFolder(table.io.fs_by_scheme(scheme, netloc), path)

    def columns(self, table: Any) -> pa.Schema:
        if not table.spec().is_unpartitioned():
            raise PipelineError(self.option, self.place, "write to a table without partitions", "has partitions")
        return table.schema().as_arrow()

    def append(self, table: Any, parts: Sequence[PreparedPart], next_batch: int) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        # Only for this commit: a blind retry would append the files again, on top of a commit of them by another process.
        own = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": own})
        root = f"{table.location()}/data"
        try:
            with table.transaction() as transaction:
                transaction.set_properties({self._property: str(next_batch)})
                batch = {"barnabas.sink": self.sink_id, "barnabas.batch": str(next_batch - 1)}
                transaction.add_files([f"{root}/{part.key}" for part in parts], batch, check_duplicate_files=False)
        except CommitFailedException:
            return False
        return True
