package zonebloom;

import java.util.function.Consumer;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand;
import org.apache.spark.sql.util.QueryExecutionListener;

/** A listener that tells Python the folder of each write to files that has succeeded. */
public final class WriteListener implements QueryExecutionListener {
  private final Consumer written;

  WriteListener(Consumer written) {
    this.written = written;
  }

  public void onSuccess(String name, QueryExecution query, long durationNs) {
    LogicalPlan plan = query.analyzed();
    if (!(plan instanceof InsertIntoHadoopFsRelationCommand)) return;
    written.accept(((InsertIntoHadoopFsRelationCommand) plan).outputPath().toString());
  }

  public void onFailure(String name, QueryExecution query, Exception error) {}
}
