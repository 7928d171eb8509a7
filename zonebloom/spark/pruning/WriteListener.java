package zonebloom;

import java.net.URI;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.command.CreateDataSourceTableAsSelectCommand;
import org.apache.spark.sql.execution.command.InsertIntoDataSourceDirCommand;
import org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand;
import org.apache.spark.sql.util.QueryExecutionListener;

/** A listener that tells Python the folder of each successful write of a session. */
public final class WriteListener implements QueryExecutionListener {
  private final Consumer written;
  // Queries whose events Python waits for. Spark reports queries in the order in which they end.
  private final ConcurrentHashMap awaited = new ConcurrentHashMap();

  WriteListener(Consumer written) { this.written = written; }

  public void onSuccess(String name, QueryExecution execution, long nanoseconds) {
    CountDownLatch latch = (CountDownLatch) awaited.get(execution);
    if (latch != null) latch.countDown();
    try {
      Path folder = folder(execution);
      if (folder != null) written.accept(folder.toString());
    } catch (Exception error) {
      // Spark logs what a listener throws.
      throw new IllegalStateException("zonebloom does not refresh the index of a write", error);
    }
  }

  public void onFailure(String name, QueryExecution execution, Exception error) {}

  public void expect(QueryExecution execution) { awaited.put(execution, new CountDownLatch(1)); }

  /** Wait until Spark has reported an expected query. Return false if that takes longer. */
  public boolean waitFor(QueryExecution execution, double seconds) throws InterruptedException {
    try {
      CountDownLatch latch = (CountDownLatch) awaited.get(execution);
      return latch.await((long) (seconds * 1000), TimeUnit.MILLISECONDS);
    } finally {
      awaited.remove(execution);
    }
  }

  /** Return the folder that a query wrote files to, or null if it wrote none. */
  private static Path folder(QueryExecution execution) throws Exception {
    LogicalPlan plan = execution.analyzed();
    if (plan instanceof InsertIntoHadoopFsRelationCommand) {
      return ((InsertIntoHadoopFsRelationCommand) plan).outputPath();
    }
    if (plan instanceof CreateDataSourceTableAsSelectCommand) {
      // The plan of a managed table has no location. Its catalog entry has one after the write.
      return new Path(execution.sparkSession().sessionState().catalog().getTableMetadata(
          ((CreateDataSourceTableAsSelectCommand) plan).table().identifier()).location());
    }
    if (plan instanceof InsertIntoDataSourceDirCommand) {
      return new Path(
          (URI) ((InsertIntoDataSourceDirCommand) plan).storage().locationUri().get());
    }
    return null;
  }
}

/** The object that Python gets after this text is compiled. */
public final class WriteListeners {
  public WriteListener listener(Consumer written) { return new WriteListener(written); }

  /** Return a path as Spark opens it, with the scheme of its file system. */
  public String qualified(String path, org.apache.hadoop.conf.Configuration conf) throws Exception {
    Path folder = new Path(path);
    return folder.getFileSystem(conf).makeQualified(folder).toString();
  }
}
