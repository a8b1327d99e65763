"""Rows of a date in a PostgreSQL table, as release 0.1.0 delivered them: staged by INSERT, then compared by row.

Spark's JDBC writer inserts the rows into a staging table without an index. One query counts the rows and the
distinct keys. One transaction then deletes rows of the date that are not in the staging table, and inserts or
updates the others in the served table, through the index of its primary key.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

COLUMNS = ("user_id", "position", "item_id", "score", "reason", "model_version")
KEY, VALUES = COLUMNS[:2], COLUMNS[2:]
TYPES = ("text", "integer", "text", "real", "text", "text")
TASKS, BATCH_ROWS = 8, 10_000


def deliver(rows: DataFrame, url: str, properties: dict[str, str], table: str, date: str) -> tuple[int, int]:
    """Replaces the rows of a date. Returns the number of written rows and of deleted rows.

    Args:
        rows: a frame with COLUMNS.
        url: of the server. The JDBC driver is on Spark's class path.
        properties: user and password.
        table: the served table, which is created if it does not exist.
        date: the date of the rows.
    """
    jvm: Any = rows.sparkSession._jvm
    settings = jvm.java.util.Properties()
    for name, value in properties.items():
        settings.setProperty(name, value)
    registry = jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry
    registry.register("org.postgresql.Driver")
    connection = registry.get("org.postgresql.Driver").connect(url, settings)
    try:
        return _deliver(connection, rows, url, properties, table, date)
    finally:
        connection.close()


def _deliver(
    connection: Any, rows: DataFrame, url: str, properties: dict[str, str], table: str, date: str
) -> tuple[int, int]:
    def execute(text: str) -> int:
        statement = connection.createStatement()
        statement.execute(text)
        changed = max(int(statement.getUpdateCount()), 0)
        statement.close()
        return changed

    typed = ", ".join(f"{name} {kind} NOT NULL" for name, kind in zip(COLUMNS, TYPES, strict=True))
    staging = f"{table}_staged"
    execute(
        f"CREATE TABLE IF NOT EXISTS {table} (dt date NOT NULL, {typed}, PRIMARY KEY (dt, {', '.join(KEY)}))"
    )
    execute(f"CREATE UNLOGGED TABLE {staging} ({typed})")
    options = {"url": url, "dbtable": staging, "driver": "org.postgresql.Driver", **properties}
    options |= {"numPartitions": str(TASKS), "batchsize": str(BATCH_ROWS), "reWriteBatchedInserts": "true"}
    rows.select(*COLUMNS).write.format("jdbc").options(**options).mode("append").save()
    statement = connection.createStatement()
    result = statement.executeQuery(f"SELECT count(*), count(DISTINCT ({', '.join(KEY)})) FROM {staging}")
    result.next()
    if result.getLong(1) != result.getLong(2):
        raise RuntimeError("a row was staged twice")
    statement.close()
    execute(f"ANALYZE {staging}")
    old, new = (", ".join(f"{side}.{name}" for name in VALUES) for side in ("t", "EXCLUDED"))
    changed = ", ".join(f"{name} = EXCLUDED.{name}" for name in VALUES)
    connection.setAutoCommit(False)
    execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
    execute("SET LOCAL enable_nestloop = off")
    same_key = " AND ".join(f"s.{name} = t.{name}" for name in KEY)
    deleted = execute(
        f"DELETE FROM {table} AS t WHERE dt = DATE '{date}' "
        f"AND NOT EXISTS (SELECT 1 FROM {staging} AS s WHERE {same_key})"
    )
    written = execute(
        f"INSERT INTO {table} AS t (dt, {', '.join(COLUMNS)}) "
        f"SELECT DATE '{date}', {', '.join(COLUMNS)} FROM {staging} "
        f"ON CONFLICT (dt, {', '.join(KEY)}) DO UPDATE SET {changed} WHERE ({old}) IS DISTINCT FROM ({new})"
    )
    execute(f"DROP TABLE {staging}")
    connection.commit()
    connection.setAutoCommit(True)
    return written, deleted
