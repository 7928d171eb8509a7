package zonebloom;

import java.util.*;
import java.util.function.Consumer;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.command.DataWritingCommand;
import org.apache.spark.sql.execution.command.DataWritingCommandExec;
import org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand;
import org.slf4j.LoggerFactory;
import scala.collection.JavaConverters;
import scala.collection.immutable.Seq;

/** Spark's planning of writes to files, with a report to Python at the end of each. */
public final class ReportedWrites extends SparkStrategy {
  private final Consumer written;

  ReportedWrites(Consumer written) {
    this.written = written;
  }

  public Seq apply(LogicalPlan plan) {
    List planned = new ArrayList();
    if (plan instanceof InsertIntoHadoopFsRelationCommand) {
      DataWritingCommand command = (DataWritingCommand) plan;
      planned.add(new ReportedWrite(command, planLater(command.query()), this));
    }
    return JavaConverters.asScalaBuffer(planned).toSeq();
  }

  /** Tell Python that a write has succeeded, and wait until Python has taken the report. */
  void report(String folder) {
    try {
      // In a thread of its own, because Python would answer this thread in that of the user.
      Chooser.THREADS.submit(new Report(written, folder)).get();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    } catch (Exception error) {
      // A refresh that fails must not fail the write.
      LoggerFactory.getLogger("zonebloom")
          .warn("the index of " + folder + " is not refreshed after a write", error);
    }
  }
}

/** A write to a folder that is reported when it has succeeded. */
public final class ReportedWrite extends DataWritingCommandExec {
  private final ReportedWrites writes;
  private boolean isReported = false;

  public ReportedWrite(DataWritingCommand command, SparkPlan child, ReportedWrites writes) {
    super(command, child);
    this.writes = writes;
  }

  public synchronized Seq sideEffectResult() {
    // Spark writes in the first call only.
    Seq rows = super.sideEffectResult();
    if (!isReported) {
      writes.report(((InsertIntoHadoopFsRelationCommand) cmd()).outputPath().toString());
    }
    isReported = true;
    return rows;
  }

  // Spark copies plan nodes by these methods and by the public constructor.
  public DataWritingCommandExec copy(DataWritingCommand command, SparkPlan child) {
    return new ReportedWrite(command, child, writes);
  }

  public Seq otherCopyArgs() {
    return JavaConverters.asScalaBuffer(Collections.singletonList(writes)).toSeq();
  }
}

/** A task that tells Python the folder of a write. */
final class Report implements Runnable {
  private final Consumer written;
  private final String folder;

  Report(Consumer written, String folder) {
    this.written = written;
    this.folder = folder;
  }

  public void run() { written.accept(folder); }
}
