package zonebloom;

import java.sql.Date;
import java.util.*;
import org.apache.spark.SparkThrowable;
import org.apache.spark.api.python.PythonRDD;
import org.apache.spark.rdd.MapPartitionsRDD;
import org.apache.spark.rdd.ParallelCollectionPartition;
import org.apache.spark.rdd.ParallelCollectionRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.optimizer.PushDownPredicates$;
import org.apache.spark.sql.catalyst.plans.ExistenceJoin;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.LeftOuter$;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.RightOuter$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation$;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.catalyst.util.DateTimeUtils$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LocalLimitExec;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.datasources.*;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.JavaConverters;
import scala.collection.immutable.Seq;

/** A filter directly above the scan of an indexed relation, as the logical plan has it. */
final class FilteredScan {
  final Filter node;
  final LogicalRelation relation;
  final IndexedFiles files;
  final Seq partitionFilters;
  final Seq dataFilters;

  private FilteredScan(Filter node, LogicalRelation relation, IndexedFiles files) {
    this.node = node;
    this.relation = relation;
    this.files = files;
    Set partitionColumns = new HashSet();
    for (String name : files.partitionSchema().fieldNames()) {
      partitionColumns.add(name.toLowerCase(Locale.ROOT));
    }
    List ofPartitions = new ArrayList();
    List ofRows = new ArrayList();
    // A query may spell columns in another case, which not all file indices understand.
    Seq terms = JavaConverters.asScalaBuffer(Terms.of(node.condition())).toSeq();
    terms = DataSourceStrategy$.MODULE$.normalizeExprs(terms, relation.output());
    for (Object term : JavaConverters.seqAsJavaList(terms)) {
      Expression filter = (Expression) term;
      if (!filter.deterministic()) continue;
      if (filter.containsPattern(TreePattern.PLAN_EXPRESSION())) continue;
      boolean isOfPartitions = true;
      for (Object column : JavaConverters.seqAsJavaList(filter.references().toSeq())) {
        String name = ((Attribute) column).name().toLowerCase(Locale.ROOT);
        isOfPartitions &= partitionColumns.contains(name);
      }
      (isOfPartitions ? ofPartitions : ofRows).add(filter);
    }
    partitionFilters = JavaConverters.asScalaBuffer(ofPartitions).toSeq();
    dataFilters = JavaConverters.asScalaBuffer(ofRows).toSeq();
  }

  /** Return whether the file index knows these filters. */
  boolean isAttached() { return files.isFor(partitionFilters, dataFilters); }

  /** Return the scan below a node of a plan, or null if the node is no filter of a scan. */
  static FilteredScan of(Object plan) {
    if (!(plan instanceof Filter) || !(((Filter) plan).child() instanceof LogicalRelation)) {
      return null;
    }
    LogicalRelation relation = (LogicalRelation) ((Filter) plan).child();
    FileIndex files = Plans.files(relation);
    if (!(files instanceof IndexedFiles)) return null;
    return new FilteredScan((Filter) plan, relation, (IndexedFiles) files);
  }
}

/** The terms of a condition that AND combines. */
final class Terms {
  static List of(Expression condition) {
    List terms = new ArrayList();
    ArrayDeque stack = new ArrayDeque();
    stack.push(condition);
    while (!stack.isEmpty()) {
      Expression next = (Expression) stack.pop();
      if (next instanceof And) {
        stack.push(((And) next).right());
        stack.push(((And) next).left());
      } else {
        terms.add(next);
      }
    }
    return terms;
  }
}

/** A plan transformation that tells the file index of each scan the filters of that scan. */
final class FilterAttacher extends NodeChange {
  private final List addedFiles = new ArrayList();

  /** Return a plan with such file indices, or the same plan. */
  static LogicalPlan attach(LogicalPlan plan) {
    FilterAttacher attacher = new FilterAttacher();
    LogicalPlan attached = (LogicalPlan) plan.transformUpWithSubqueries(attacher);
    for (Object files : attacher.addedFiles) ((IndexedFiles) files).finishRewrite();
    return attacher.addedFiles.isEmpty() ? plan : attached;
  }

  Object replacement(Object plan) {
    FilteredScan scan = FilteredScan.of(plan);
    if (scan == null || scan.dataFilters.isEmpty() || scan.isAttached()) return null;
    IndexedFiles files = scan.files.withFilters(scan.partitionFilters, scan.dataFilters);
    addedFiles.add(files);
    return new Filter(
        scan.node.condition(), (LogicalPlan) Plans.withFiles(files, scan.relation));
  }
}

/**
 * A plan transformation that lets the keys of the small side of an equi-join choose the files of
 * the other side.
 *
 * <p>The small side is computed once, here. Its rows take its place in the plan, so that the keys
 * and the joined rows cannot differ, and its keys become a filter of the other side.
 */
final class JoinKeys extends NodeChange {
  private static final int MAX_ROWS = 10000;
  // If this many keys are in most files, the others need not be looked up.
  private static final int SAMPLE_ROWS = 32;
  // If each of this many keys alone is in most files, so are other keys of the column.
  private static final int SINGLE_ROWS = 3;
  // A join whose keys chose no files, or a column like that, is left to Spark for this time.
  private static final long USELESS_MS = 600000;
  private static final int MAX_USELESS = 1000;
  // The keys are used if the files that may hold them have less than this share of the bytes.
  private static final double MAX_KEPT_SHARE = 0.75;
  // A side is computed early only if the other side reads this many times its bytes.
  private static final long MIN_SIZE_RATIO = 8;
  // Why the keys of a join choose no files. Empty if they do.
  private static final TreeNodeTag NOTE = new TreeNodeTag("zonebloom.join");
  private final SparkSession session;
  private final long minScanBytes;
  private final long maxSideBytes;
  // When joins and columns chose no files: by the hash of the sides of a join, and by JoinKey.place.
  private final Map useless;
  private boolean hasDynamicPruning = false;
  private String note;
  // Small sides and their rows, in the order in which they were computed.
  private final List computedSides = new ArrayList();

  JoinKeys(SparkSession session, long minScanBytes, Map useless) {
    this.session = session;
    this.minScanBytes = minScanBytes;
    this.useless = useless;
    this.maxSideBytes = session.sessionState().conf().autoBroadcastJoinThreshold();
  }

  /** Return the plan with filters on the keys of joins, or the same plan. */
  LogicalPlan apply(LogicalPlan plan) {
    if (maxSideBytes <= 0 || plan.isStreaming()) return plan;
    if (!plan.containsPattern(TreePattern.JOIN())) return plan;
    hasDynamicPruning = plan.containsPattern(TreePattern.DYNAMIC_PRUNING_SUBQUERY());
    LogicalPlan result = (LogicalPlan) plan.transformUp(this);
    // Other places of the same side, such as a filter of partitions, must have the same rows.
    for (Object side : computedSides) {
      result = (LogicalPlan) result.transformDownWithSubqueries((SideReplacer) side);
    }
    return result;
  }

  Object replacement(Object plan) {
    if (!(plan instanceof Join) || ((Join) plan).condition().isEmpty()) return null;
    Join join = (Join) plan;
    if (join.getTagValue(NOTE).isDefined()) return null;
    note = "it compares no column of files by =, or keeps all rows of those files";
    try {
      // Rows of a preserved side appear in the result even if their keys match nothing.
      JoinType type = join.joinType();
      boolean isSymmetric = type == Inner$.MODULE$ || type == LeftSemi$.MODULE$;
      boolean isLeftPreserved =
          type == LeftOuter$.MODULE$ || type == LeftAnti$.MODULE$ || type instanceof ExistenceJoin;
      if (isSymmetric || isLeftPreserved) join = filterSide(join, false);
      if (isSymmetric || type == RightOuter$.MODULE$) join = filterSide(join, true);
    } catch (Exception error) {
      if (isCancelled(error)) Platform.throwException(error);
      // Spark runs the plan as it is. If it fails for the same reason, the user sees why.
      join = (Join) plan;
      note = "it cannot be examined: " + error;
    }
    join.setTagValue(NOTE, note);
    // Spark keeps the old node if the new one equals it.
    if (join.fastEquals((Join) plan)) ((Join) plan).setTagValue(NOTE, note);
    return join;
  }

  /** Add the notes on the joins of a plan to a list. */
  static void collectNotes(LogicalPlan plan, List notes) {
    scala.Option note = plan.getTagValue(NOTE);
    if (note.isDefined() && !note.get().equals("")) {
      String condition = ((Join) plan).condition().get().toString();
      if (condition.length() > 100) condition = condition.substring(0, 97) + "...";
      notes.add("the join on " + condition + " chooses no files: " + note.get());
    }
    for (Object child : JavaConverters.seqAsJavaList(plan.children())) {
      collectNotes((LogicalPlan) child, notes);
    }
    for (Object subquery : JavaConverters.seqAsJavaList(plan.subqueries())) {
      collectNotes((LogicalPlan) subquery, notes);
    }
  }

  private boolean isCancelled(Throwable error) {
    if (Thread.currentThread().isInterrupted()) return true;
    // In Spark 3.5 the error of a cancelled job has no class and no cause. Other errors have one.
    boolean hasClass = !session.version().startsWith("3.");
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof InterruptedException) return true;
      if (!(cause instanceof SparkThrowable)) continue;
      String errorClass = ((SparkThrowable) cause).getErrorClass();
      boolean isPlain = errorClass == null && cause.getCause() == null;
      if (hasClass ? "SPARK_JOB_CANCELLED".equals(errorClass) : isPlain) return true;
    }
    return false;
  }

  /** Return a join in which the keys of one side filter the other, or the same join. */
  private Join filterSide(Join join, boolean isLeft) throws Exception {
    LogicalPlan large = isLeft ? join.left() : join.right();
    LogicalPlan small = isLeft ? join.right() : join.left();
    Expression condition = (Expression) join.condition().get();
    if (!condition.deterministic()) return join;
    if (note.isEmpty()) return join;
    long scanBytes = 0;
    List keys = new ArrayList();
    for (Object term : Terms.of(condition)) {
      JoinKey key = JoinKey.of((Expression) term, large, small);
      if (key == null || key.probedScans.isEmpty()) continue;
      keys.add(key);
      scanBytes = Math.max(scanBytes, key.scanBytes());
    }
    if (keys.isEmpty()) return join;
    if (scanBytes < minScanBytes) {
      note = "it reads only " + scanBytes + " bytes";
      return join;
    }
    if (!isCheap(small, scanBytes)) {
      note = "neither side is small beside the files of the other, or it cannot be computed early";
      return join;
    }
    List indexedKeys = new ArrayList();
    for (Object key : keys) if (((JoinKey) key).hasIndex()) indexedKeys.add(key);
    if (indexedKeys.isEmpty()) {
      note = "there is no index on a column that it compares by =";
      return join;
    }
    Object sides = Arrays.asList(new Object[] {large.semanticHash(), small.semanticHash()});
    boolean isUseless = true;
    for (Object key : indexedKeys) isUseless &= wasUseless(((JoinKey) key).place());
    if (isUseless || wasUseless(sides)) {
      note = "keys of this join or column chose no files less than ten minutes ago";
      return join;
    }

    List rows = computedRows(small);
    if (rows == null) {
      try {
        rows = compute(small);
      } catch (Exception error) {
        if (isCancelled(error)) throw error;
        setUseless(sides, "its smaller side failed: " + error);
        return join;
      }
      if (rows == null) {
        setUseless(sides, "its smaller side has too many rows or bytes");
        return join;
      }
      computedSides.add(new SideReplacer(small, rows));
    }
    List sample = new ArrayList();
    int step = Math.max(1, rows.size() / SAMPLE_ROWS);
    for (int i = 0; i < rows.size(); i += step) sample.add(rows.get(i));
    LogicalPlan newSide = withKeys(large, indexedKeys, sample, small);
    if (newSide != large && step > 1) newSide = withKeys(large, indexedKeys, rows, small);
    note = "";
    if (newSide == large) {
      setUseless(sides, "its keys may be in most files");
      findUselessColumns(large, indexedKeys, sample, small);
    }
    LogicalPlan newSmall = SideReplacer.relation(small.output(), rows);
    return join.copy(
        isLeft ? newSide : newSmall,
        isLeft ? newSmall : newSide,
        join.joinType(),
        join.condition(),
        join.hint());
  }

  /** Return the rows of an equal side that was computed before, or null. */
  private List computedRows(LogicalPlan side) {
    for (Object computed : computedSides) {
      if (((SideReplacer) computed).isEqual(side)) return ((SideReplacer) computed).rows;
    }
    return null;
  }

  /** Compute a side. Return its rows, or null if they are too many or too large. */
  private List compute(LogicalPlan side) {
    // This limits each partition, so that one job reads all of them at the same time. A limit inside
    // the plan would make Spark generate and compile other code each time.
    SparkPlan plan = Dataset.ofRows(session, side).queryExecution().executedPlan();
    SparkPlan limited = new LocalLimitExec(MAX_ROWS + 1, plan);
    // Outside of an action, Spark's tasks do not know the settings of the session.
    InternalRow[] rows =
        (InternalRow[]) SQLExecution.withSQLConfPropagated(session, new CollectCall(limited));
    if (rows.length > MAX_ROWS) return null;
    List copies = new ArrayList();
    long bytes = 0;
    for (InternalRow row : rows) {
      copies.add(row.copy());
      bytes += ((UnsafeRow) row).getSizeInBytes();
    }
    return bytes > maxSideBytes ? null : copies;
  }

  private boolean wasUseless(Object joinOrColumn) {
    Object sinceMs = useless.get(joinOrColumn);
    return sinceMs != null && System.currentTimeMillis() - (Long) sinceMs < USELESS_MS;
  }

  private void setUseless(Object joinOrColumn, String reason) {
    if (useless.size() >= MAX_USELESS) useless.clear();
    useless.put(joinOrColumn, System.currentTimeMillis());
    note = reason;
  }

  /** Remember the columns of keys that are in most files, as far as some rows tell. */
  private void findUselessColumns(LogicalPlan large, List keys, List rows, LogicalPlan small) {
    for (Object row : rows.subList(0, Math.min(SINGLE_ROWS, rows.size()))) {
      List single = Collections.singletonList(row);
      if (withKeys(large, keys, single, small) != large) return;
    }
    for (Object key : keys) {
      // If other filters chose few files, their keys say little about the others.
      if (((JoinKey) key).readsMostFiles()) setUseless(((JoinKey) key).place(), note);
    }
  }

  /** Return a side with filters of the keys in some rows, or the same side if it saves little. */
  private static LogicalPlan withKeys(LogicalPlan side, List keys, List rows, LogicalPlan small) {
    LogicalPlan result = side;
    for (Object key : keys) {
      Expression filter = ((JoinKey) key).filter(rows, small);
      if (filter != null) result = PushDown.filter(filter, result);
    }
    result = FilterAttacher.attach(result);
    return bytes(result) < MAX_KEPT_SHARE * bytes(side) ? result : side;
  }

  /** Return the bytes that all indexed scans of a side read. */
  private static double bytes(LogicalPlan side) {
    double bytes = 0;
    for (Object item : JavaConverters.seqAsJavaList(side.collectLeaves())) {
      FileIndex files = Plans.files(item);
      if (files instanceof IndexedFiles) bytes += files.sizeInBytes();
    }
    return bytes;
  }

  /** Return whether a side has known nodes only, and reads little beside the other side. */
  private boolean isCheap(LogicalPlan side, long otherBytes) {
    if (!side.deterministic() || !isSimple(side)) return false;
    return leafBytes(side) <= Math.min(maxSideBytes, otherBytes / MIN_SIZE_RATIO);
  }

  private boolean isSimple(LogicalPlan plan) {
    // Rows of these nodes may differ each time. A filter of partitions that Spark derived from the
    // side may compute it again.
    boolean mayDiffer =
        plan instanceof GlobalLimit || plan instanceof LocalLimit || plan instanceof Window;
    boolean isKnown =
        plan.children().isEmpty()
            || plan instanceof Aggregate
            || plan instanceof Filter
            || plan instanceof Join
            || plan instanceof Project
            || plan instanceof Sort
            || plan instanceof Union
            || (mayDiffer && !hasDynamicPruning);
    if (!isKnown || plan.containsPattern(TreePattern.PLAN_EXPRESSION())) return false;
    for (Object child : JavaConverters.seqAsJavaList(plan.children())) {
      if (!isSimple((LogicalPlan) child)) return false;
    }
    return true;
  }

  /** Return the bytes that the leaves of a plan read, Long.MAX_VALUE if that is not known. */
  private static long leafBytes(LogicalPlan plan) {
    long bytes = 0;
    for (Object item : JavaConverters.seqAsJavaList(plan.collectLeaves())) {
      LogicalPlan leaf = (LogicalPlan) item;
      if (leaf instanceof LocalRelation || leaf instanceof OneRowRelation) continue;
      if (leaf instanceof LogicalRDD) {
        long listBytes = listBytes(((LogicalRDD) leaf).rdd());
        if (listBytes < 0) return Long.MAX_VALUE;
        bytes += listBytes;
        continue;
      }
      boolean isKnown =
          leaf instanceof Range
              || Plans.files(leaf) != null
              || (leaf instanceof InMemoryRelation
                  && ((InMemoryRelation) leaf).cacheBuilder().isCachedColumnBuffersLoaded());
      scala.math.BigInt size = leaf.stats().sizeInBytes();
      if (!isKnown || !size.isValidLong()) return Long.MAX_VALUE;
      bytes = Math.min(bytes, Long.MAX_VALUE - size.toLong()) + size.toLong();
    }
    return bytes;
  }

  /**
   * Return the bytes of the driver's list that an RDD was made of, as by createDataFrame, or -1 if
   * it was made of something else. Functions of the user may have changed the rows since.
   */
  private static long listBytes(RDD rdd) {
    while (!(rdd instanceof ParallelCollectionRDD)) {
      boolean isMapped = rdd instanceof MapPartitionsRDD || rdd instanceof PythonRDD;
      if (!isMapped || rdd.dependencies().size() != 1) return -1;
      rdd = ((org.apache.spark.Dependency) rdd.dependencies().apply(0)).rdd();
    }
    long bytes = 0;
    Object[] partitions = (Object[]) rdd.partitions();
    for (int i = 0; i < partitions.length; i++) {
      scala.collection.Seq values = ((ParallelCollectionPartition) partitions[i]).values();
      for (Object value : JavaConverters.asJavaIterable(values)) {
        // Python's rows are pickled in batches.
        bytes += value instanceof byte[] ? ((byte[]) value).length : 64;
      }
    }
    return bytes;
  }
}

/** An equality of a join between an expression of the large side and one of the small side. */
final class JoinKey {
  // 1582-10-15, the first day of the Gregorian calendar, and 1900-01-01, before which Spark may
  // rebase times.
  private static final int FIRST_DAY = -141427;
  private static final long FIRST_MICROSECOND = -2208988800000000L;
  // Marks the filters by keys. Spark copies tags when it copies a filter.
  private static final TreeNodeTag IS_KEYS = new TreeNodeTag("zonebloom.keys");
  // The expression of the large side, without the cast that widens an integer.
  private final Expression largeKey;
  private final Expression smallKey;
  // The scans that a filter of the large side's key reaches. Their conditions contain a probe, a
  // filter without values.
  final List probedScans = new ArrayList();

  private JoinKey(Expression largeKey, Expression smallKey, LogicalPlan large) {
    this.largeKey = largeKey;
    this.smallKey = smallKey;
    Expression probe = new InSet(largeKey, PushDown.scalaSet(new HashSet()));
    if (!findProbes(PushDown.filter(probe, large))) probedScans.clear();
  }

  /**
   * Collect the scans of a plan that the probe reached. Return false if Spark would compute more
   * than a stored value for it anywhere, because that may fail for rows which a join below the
   * first place of the probe excludes.
   */
  private boolean findProbes(LogicalPlan plan) {
    Expression key = plan instanceof Filter ? probeKey((Filter) plan) : null;
    FilteredScan scan = key == null ? null : FilteredScan.of(plan);
    if (scan != null) probedScans.add(scan);
    while (key instanceof GetStructField) key = ((GetStructField) key).child();
    if (key != null && !(key instanceof AttributeReference)) return false;
    for (Object child : JavaConverters.seqAsJavaList(plan.children())) {
      if (!findProbes((LogicalPlan) child)) return false;
    }
    return true;
  }

  /** Return what the probe compares in a node, or null if it is not there. */
  private static Expression probeKey(Filter node) {
    for (Object term : Terms.of(node.condition())) {
      if (term instanceof InSet && ((InSet) term).hset().isEmpty()) return ((InSet) term).child();
    }
    return null;
  }

  /** Return the bytes that these scans read now. */
  long scanBytes() {
    long bytes = 0;
    for (Object scan : probedScans) bytes += ((FilteredScan) scan).files.sizeInBytes();
    return bytes;
  }

  /** Return whether these scans read most of the bytes of their files. */
  boolean readsMostFiles() {
    long bytes = 0;
    for (Object scan : probedScans) bytes += ((FilteredScan) scan).files.inner.sizeInBytes();
    return scanBytes() > bytes / 2;
  }

  /** Return the roots of these scans, each with the names of its column. */
  List place() {
    List place = new ArrayList();
    for (Object item : probedScans) {
      FilteredScan scan = (FilteredScan) item;
      place.add(scan.files.rootPaths());
      Expression column = probeKey(scan.node);
      for (; column instanceof GetStructField; column = ((GetStructField) column).child()) {
        place.add(((GetStructField) column).ordinal());
      }
      place.add(((AttributeReference) column).name());
    }
    return place;
  }

  /** Return whether an index may choose the files of one of these scans. */
  boolean hasIndex() {
    for (Object item : probedScans) {
      FilteredScan scan = (FilteredScan) item;
      if (scan.files.hasIndexOn(probeKey(scan.node), scan.partitionFilters)) return true;
    }
    return false;
  }

  /** Return the key of a term of a join condition, or null if it gives none. */
  static JoinKey of(Expression term, LogicalPlan large, LogicalPlan small) {
    if (!(term instanceof EqualTo)) return null;
    if (term.containsPattern(TreePattern.PLAN_EXPRESSION())) return null;
    Expression left = ((EqualTo) term).left();
    Expression right = ((EqualTo) term).right();
    boolean isLeftLarge = left.references().subsetOf(large.outputSet());
    Expression largeKey = isLeftLarge ? left : right;
    Expression smallKey = isLeftLarge ? right : left;
    if (largeKey.references().isEmpty()
        || !largeKey.references().subsetOf(large.outputSet())
        || !smallKey.references().subsetOf(small.outputSet())
        || !largeKey.dataType().equals(smallKey.dataType())) return null;
    if (largeKey instanceof Cast && isInteger(largeKey.dataType())) {
      Expression child = ((Cast) largeKey).child();
      boolean isWider = largeKey.dataType().defaultSize() > child.dataType().defaultSize();
      if (isInteger(child.dataType()) && isWider) largeKey = child;
    }
    // Spark's Parquet filters lose rows with NaN or -0.0, so floats add no filter.
    DataType type = largeKey.dataType();
    boolean isSupported =
        isInteger(type)
            || type.equals(DataTypes.StringType)
            || type instanceof BinaryType
            || type instanceof DateType
            || type instanceof TimestampType
            || type instanceof TimestampNTZType
            || type instanceof DecimalType;
    return isSupported ? new JoinKey(largeKey, smallKey, large) : null;
  }

  private static boolean isInteger(DataType type) {
    return type instanceof ByteType
        || type instanceof ShortType
        || type instanceof IntegerType
        || type instanceof LongType;
  }

  /**
   * Return the filter that a row of the large side has one of the keys in these rows of the small
   * side, or null if Spark's Parquet filters would not find one of the keys.
   */
  Expression filter(List rows, LogicalPlan small) {
    Seq expressions = JavaConverters.asScalaBuffer(Collections.singletonList(smallKey)).toSeq();
    InterpretedProjection projection = new InterpretedProjection(expressions, small.output());
    Set keys = new HashSet();
    for (Object row : rows) {
      Object key = projection.apply((InternalRow) row).copy().get(0, smallKey.dataType());
      if (key != null && !isExact(key)) return null;
      Object value = key == null ? null : valueInFiles(key);
      if (value != null) keys.add(value);
    }
    InSet filter = new InSet(largeKey, PushDown.scalaSet(keys));
    filter.setTagValue(IS_KEYS, true);
    return filter;
  }

  static Seq noFilters() { return JavaConverters.asScalaBuffer(new ArrayList()).toSeq(); }

  /** Return the filters by keys of joins, or the others. */
  static Seq select(Seq filters, boolean isByKeys) {
    List selected = new ArrayList();
    for (Object filter : JavaConverters.seqAsJavaList(filters)) {
      boolean hasTag = ((Expression) filter).getTagValue(IS_KEYS).isDefined();
      if ((hasTag && filter instanceof InSet) == isByKeys) selected.add(filter);
    }
    return JavaConverters.asScalaBuffer(selected).toSeq();
  }

  /** Return the columns and keys of such filters, without the ids that plans give to columns. */
  static List texts(Seq keyFilters) {
    List texts = new ArrayList();
    for (Object filter : JavaConverters.seqAsJavaList(keyFilters)) {
      texts.add(((InSet) filter).child().sql());
      texts.add(((InSet) filter).hset());
    }
    return texts;
  }

  /**
   * Return whether Spark's Parquet filters, which compare values of Java's own types, find a key.
   * They change text that is no UTF-8, and dates and times of the Julian calendar.
   */
  private boolean isExact(Object key) {
    DataType type = smallKey.dataType();
    if (key instanceof UTF8String) return UTF8String.fromString(key.toString()).equals(key);
    if (type instanceof DateType) {
      int day = ((Integer) key).intValue();
      // Some time zones skipped a day. A java.sql.Date cannot be that day there.
      Date date = DateTimeUtils$.MODULE$.toJavaDate(day);
      return day >= FIRST_DAY && DateTimeUtils$.MODULE$.fromJavaDate(date) == day;
    }
    boolean isTime = type instanceof TimestampType || type instanceof TimestampNTZType;
    return !isTime || ((Long) key).longValue() >= FIRST_MICROSECOND;
  }

  /** Return a key in the type of the files, or null if it is outside its range. */
  private Object valueInFiles(Object key) {
    DataType type = largeKey.dataType();
    if (type.equals(smallKey.dataType())) return key;
    long value = ((Number) key).longValue();
    if (type instanceof ByteType) return (byte) value == value ? (Object) (byte) value : null;
    if (type instanceof ShortType) return (short) value == value ? (Object) (short) value : null;
    return (int) value == value ? (Object) (int) value : null;
  }
}

/** Calls Spark's rule that moves filters down to the scans. */
final class PushDown {
  private static final int MAX_STEPS = 20;

  /** Return a plan with a filter on top of it, moved down as far as Spark can. */
  static LogicalPlan filter(Expression condition, LogicalPlan plan) {
    LogicalPlan result = new Filter(condition, plan);
    for (int step = 0; step < MAX_STEPS; step++) {
      LogicalPlan next = PushDownPredicates$.MODULE$.apply(result);
      if (next.fastEquals(result)) return next;
      result = next;
    }
    return result;
  }

  static scala.collection.immutable.Set scalaSet(Set values) {
    return JavaConverters.asScalaSet(values).toSet();
  }
}

/** A function without parameters that runs a physical plan, as Spark's methods take it. */
final class CollectCall extends scala.runtime.AbstractFunction0 {
  private final SparkPlan plan;

  CollectCall(SparkPlan plan) {
    this.plan = plan;
  }

  public Object apply() { return plan.executeCollect(); }
}

/** A plan transformation that puts the computed rows of a plan in the place of equal plans. */
final class SideReplacer extends NodeChange {
  private final LogicalPlan side;
  final List rows;

  SideReplacer(LogicalPlan side, List rows) {
    this.side = side;
    this.rows = rows;
  }

  /** Return whether a plan is the same but for the ids of its columns, and reads the same files. */
  boolean isEqual(LogicalPlan plan) {
    return plan.getClass() == side.getClass()
        && plan.output().size() == side.output().size()
        && plan.sameResult(side)
        && listings(plan).equals(listings(side));
  }

  /** Return numbers for the listings that a plan reads. A folder may be listed at two times. */
  private static List listings(LogicalPlan plan) {
    List listings = new ArrayList();
    for (Object leaf : JavaConverters.seqAsJavaList(plan.collectLeaves())) {
      FileIndex files = Plans.files(leaf);
      if (files instanceof IndexedFiles) files = ((IndexedFiles) files).inner;
      // File indices of the same folder are equal, even if their files differ.
      if (files != null) listings.add(System.identityHashCode(files));
    }
    return listings;
  }

  Object replacement(Object plan) {
    if (!isEqual((LogicalPlan) plan)) return null;
    return relation(((LogicalPlan) plan).output(), rows);
  }

  /** Return a plan of rows. */
  static LogicalPlan relation(Seq output, List rows) {
    // The number of fields of a LocalRelation differs between versions of Spark.
    LocalRelation empty = LocalRelation$.MODULE$.apply(output);
    Object[] fields = new Object[empty.productArity()];
    for (int i = 2; i < fields.length; i++) fields[i] = empty.productElement(i);
    fields[0] = output;
    fields[1] = JavaConverters.asScalaBuffer(rows).toSeq();
    return (LogicalPlan) empty.makeCopy(fields);
  }
}
