"""Tables of Delta Lake and Apache Iceberg in a folder of a test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog

from barnabas.pipeline.table_sink import DeltaSink, IcebergSink, TableSink


class Lake:
    """One table, of the format `kind`, and what another writer does to it.

    Attributes:
        options: of a sink that writes to it.
    """

    def __init__(self, folder: Path, kind: str, columns: pa.Schema) -> None:
        self.kind = kind
        self.columns = columns
        self.path = str(folder / "delta")
        self.catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
        if kind == "delta":
            DeltaTable.create(self.path, columns)
        else:
            self._loaded().create_namespace("db")
            self._loaded().create_table("db.t", columns)

    @property
    def options(self) -> dict[str, str]:
        if self.kind == "delta":
            return {"delta.path": self.path}
        catalog = {f"iceberg.catalog.{name}": value for name, value in self.catalog.items()}
        return {"iceberg.table": "lake.db.t", **catalog}

    def _loaded(self) -> Catalog:
        return load_catalog("lake", **self.catalog)

    def sink(self, sink_id: str = "s") -> TableSink:
        """As of another process."""
        return (
            DeltaSink(sink_id, self.path) if self.kind == "delta" else IcebergSink(sink_id, "lake.db.t", self.catalog)
        )

    def add(self, **row: Any) -> None:
        """Another writer appends a row."""
        rows = pa.Table.from_pylist([row], self.columns)
        if self.kind == "delta":
            write_deltalake(self.path, rows, mode="append")
        else:
            self._loaded().load_table("db.t").append(rows)

    def maintain(self) -> None:
        """Rewrites, expires and removes what a table's owner may, as if it were old."""
        if self.kind == "delta":
            table = DeltaTable(self.path)
            table.optimize.compact()
            table.create_checkpoint()
            table.cleanup_metadata()
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        else:
            expiring = self._loaded().load_table("db.t").maintenance.expire_snapshots()
            expiring.older_than(datetime.now(UTC) + timedelta(days=1)).commit()

    def column(self, name: str) -> list[Any]:
        """The sorted values of a column."""
        if self.kind == "delta":
            table = DeltaTable(self.path).to_pyarrow_table()
        else:
            table = self._loaded().load_table("db.t").scan().to_arrow()
        return sorted(table[name].to_pylist())
