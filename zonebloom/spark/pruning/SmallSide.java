package zonebloom;

import java.util.*;
import org.apache.spark.rdd.ParallelCollectionRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation$;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.*;
import org.apache.spark.sql.types.*;
import scala.collection.JavaConverters;
import scala.collection.immutable.Seq;

/** The computed rows of the small side of a join, whose keys choose files of the other side. */
public final class SmallSide {
  static final int MAX_ROWS = 10000;
  // The keys are used if the files that may hold them have less than this share of the bytes.
  private static final double MAX_KEPT_SHARE = 0.75;
  // Of many rows, so many are tried first. All keys need at least the files of these.
  private static final int SAMPLE_ROWS = 64;
  private final SparkSession session;
  private final Seq output;
  private final List rows;

  private SmallSide(SparkSession session, Seq output, List rows) {
    this.session = session;
    this.output = output;
    this.rows = rows;
  }

  /** Return the computed rows of a frame, or null if it reads too much or has too many rows. */
  static SmallSide of(SparkSession session, Dataset frame) {
    QueryExecution query = frame.queryExecution();
    long maxBytes = session.sessionState().conf().autoBroadcastJoinThreshold();
    if (maxBytes <= 0 || readBytes(query.sparkPlan()) > maxBytes) return null;
    final SparkPlan plan = query.executedPlan();
    scala.Function0 takeRows =
        new scala.runtime.AbstractFunction0() {
          public Object apply() { return plan.executeTake(MAX_ROWS + 1); }
        };
    InternalRow[] found =
        (InternalRow[])
            SQLExecution.withNewExecutionId(
                query, scala.Option.apply("keys of a join"), takeRows);
    if (found.length > MAX_ROWS) return null;
    List rows = new ArrayList();
    long bytes = 0;
    for (InternalRow row : found) {
      rows.add(row.copy());
      bytes += ((UnsafeRow) row).getSizeInBytes();
    }
    return bytes > maxBytes ? null : new SmallSide(session, query.analyzed().output(), rows);
  }

  /** Return a frame of the rows, with the columns of the computed frame. */
  public Dataset frame() {
    // The number of fields of a LocalRelation differs between versions of Spark.
    LocalRelation empty = LocalRelation$.MODULE$.apply(output);
    Object[] fields = new Object[empty.productArity()];
    for (int i = 0; i < fields.length; i++) fields[i] = empty.productElement(i);
    fields[1] = JavaConverters.asScalaBuffer(rows).toSeq();
    return Dataset.ofRows(session, (LogicalPlan) empty.makeCopy(fields));
  }

  /**
   * Return the rows of a large frame that have one of the keys, or null if that would not skip
   * enough files. Keys are given by their positions among the columns of both frames.
   */
  public Dataset filter(Dataset large, List positions, List smallPositions) {
    boolean isLong = rows.size() > 2 * SAMPLE_ROWS;
    if (isLong && sample().filter(large, positions, smallPositions) == null) return null;
    LogicalPlan plan = large.queryExecution().analyzed();
    Seq columns = plan.output();
    for (int i = 0; i < positions.size(); i++) {
      Expression column = (Expression) columns.apply((Integer) positions.get(i));
      Set keys = keys((Integer) smallPositions.get(i), column.dataType());
      // Parquet's filters would cost more than they save, and Spark does not push this to them.
      Expression hidden = new KnownFloatingPointNormalized(column);
      plan = new Filter(new InSet(hidden, JavaConverters.asScalaSet(keys).toSet()), plan);
    }
    Dataset filtered = Dataset.ofRows(session, plan);
    long keptBytes = 0;
    long allBytes = 0;
    SparkPlan physical = filtered.queryExecution().sparkPlan();
    for (Object leaf : JavaConverters.seqAsJavaList(physical.collectLeaves())) {
      IndexedFiles files = indexedFiles(leaf);
      if (files == null) continue;
      keptBytes += files.lastScan().numBytes();
      allBytes += files.sizeInBytes();
    }
    return keptBytes < MAX_KEPT_SHARE * allBytes ? filtered : null;
  }

  /** Return some of the rows, from all parts of their list. */
  private SmallSide sample() {
    List some = new ArrayList();
    int step = rows.size() / SAMPLE_ROWS;
    for (int i = 0; i < rows.size(); i += step) some.add(rows.get(i));
    return new SmallSide(session, output, some);
  }

  /** Return the keys in a column of the rows, as values of the type of the large side's column. */
  private Set keys(int position, DataType type) {
    DataType smallType = ((Expression) output.apply(position)).dataType();
    Set keys = new HashSet();
    for (Object row : rows) {
      Object key = ((InternalRow) row).get(position, smallType);
      if (key != null && !type.equals(smallType)) key = narrowed(((Number) key).longValue(), type);
      if (key != null) keys.add(key);
    }
    return keys;
  }

  /** Return an integer in another type of integers, or null if it is outside its range. */
  private static Object narrowed(long value, DataType type) {
    if (type instanceof ByteType) return (byte) value == value ? (Object) (byte) value : null;
    if (type instanceof ShortType) return (short) value == value ? (Object) (short) value : null;
    if (type instanceof IntegerType) return (int) value == value ? (Object) (int) value : null;
    return value;
  }

  /** Return the bytes that the leaves of a plan read, as far as Spark and the index know. */
  private static double readBytes(SparkPlan plan) {
    double bytes = 0;
    for (Object item : JavaConverters.seqAsJavaList(plan.collectLeaves())) {
      SparkPlan leaf = (SparkPlan) item;
      IndexedFiles files = indexedFiles(leaf);
      if (files != null) {
        bytes += files.lastScan().numBytes();
      } else if (leaf.logicalLink().isEmpty()) {
        return Double.MAX_VALUE;
      } else if (!(leaf instanceof RDDScanExec) || !isList(((RDDScanExec) leaf).rdd())) {
        bytes += ((LogicalPlan) leaf.logicalLink().get()).stats().sizeInBytes().toDouble();
      }
    }
    return bytes;
  }

  /** Return whether an RDD was made of a list of the driver, as by createDataFrame. */
  private static boolean isList(RDD rdd) {
    while (rdd.dependencies().size() == 1) {
      rdd = ((org.apache.spark.Dependency) rdd.dependencies().apply(0)).rdd();
    }
    return rdd instanceof ParallelCollectionRDD;
  }

  /** Return the files of a leaf that asked an index, or null. */
  private static IndexedFiles indexedFiles(Object leaf) {
    if (!(leaf instanceof FileSourceScanExec)) return null;
    FileIndex files = ((FileSourceScanExec) leaf).relation().location();
    if (!(files instanceof IndexedFiles)) return null;
    return ((IndexedFiles) files).lastScan() == null ? null : (IndexedFiles) files;
  }
}
