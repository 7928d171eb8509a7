package zonebloom;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import org.apache.commons.codec.binary.Hex;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.*;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.ThreadUtils;
import scala.collection.JavaConverters;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/**
 * A Spark file index that leaves out files without matching rows. It lists files through Spark's
 * own file index, and asks Python which of them may match the filters of a scan.
 */
public final class IndexedFiles implements FileIndex {
  private static final int MAX_CACHED_SCANS = 8;
  public final FileIndex inner;
  private final Chooser chooser;
  private final SparkSession session;
  // Scans by running query and filters. Spark lists files when it plans a query and again when it
  // runs it; the cache makes Python choose the files only once.
  private final Map cachedScans;
  private volatile Scan lastScan = null;
  // False until all nodes of the rewritten plan hold this file index. See equals().
  private boolean isRewriteDone = false;

  IndexedFiles(FileIndex inner, Chooser chooser, SparkSession session) {
    this(inner, chooser, session, new ConcurrentHashMap());
  }

  private IndexedFiles(FileIndex inner, Chooser chooser, SparkSession session, Map cachedScans) {
    this.inner = inner;
    this.chooser = chooser;
    this.session = session;
    this.cachedScans = cachedScans;
  }

  /** Return a copy for one leaf of a physical plan, so that each leaf keeps its own last result. */
  IndexedFiles copyForLeaf() {
    IndexedFiles files = new IndexedFiles(inner, chooser, session, cachedScans);
    files.finishRewrite();
    return files;
  }

  /** Return the scan that listed files last, or null if no index was asked. */
  Scan lastScan() { return lastScan; }

  public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
    if (!Filters.canSkip(dataFilters)) return inner.listFiles(partitionFilters, dataFilters);
    return scan(partitionFilters, dataFilters).directories();
  }

  /** Return a scan with its chosen files. A query that runs chooses the files of a scan once. */
  Scan scan(Seq partitionFilters, Seq dataFilters) {
    Object query = session.sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    // The optimizer and the planner may give the same filters in another order.
    Set filters = new HashSet(JavaConverters.seqAsJavaList(dataFilters));
    Set ofPartitions = new HashSet(JavaConverters.seqAsJavaList(partitionFilters));
    List key = Arrays.asList(new Object[] {query, ofPartitions, filters});
    Scan scan = query == null ? null : (Scan) cachedScans.get(key);
    if (scan == null) {
      Seq directories = inner.listFiles(partitionFilters, dataFilters);
      scan = new Scan(session, inner, directories, dataFilters);
      chooser.choose(scan);
      if (cachedScans.size() >= MAX_CACHED_SCANS) cachedScans.clear();
      if (query != null) cachedScans.put(key, scan);
    }
    lastScan = scan;
    return scan;
  }

  public Seq rootPaths() { return inner.rootPaths(); }
  public String[] inputFiles() { return inner.inputFiles(); }

  public void refresh() {
    cachedScans.clear();
    inner.refresh();
  }

  public long sizeInBytes() { return inner.sizeInBytes(); }
  public StructType partitionSchema() { return inner.partitionSchema(); }
  public scala.Option metadataOpsTimeNs() { return inner.metadataOpsTimeNs(); }

  void finishRewrite() { isRewriteDone = true; }

  /**
   * Return true for Spark's own index of the same files, because a scan of either returns the same
   * rows. Spark compares relations to refuse an overwrite of a table that is read, to drop cached
   * frames and to reuse exchanges. While a plan is rewritten old and new must differ, because
   * TreeNode.withNewChildren keeps the old children if the new ones are equal.
   */
  public boolean equals(Object other) {
    if (this == other) return true;
    if (!(other instanceof IndexedFiles)) return isRewriteDone && inner.equals(other);
    IndexedFiles files = (IndexedFiles) other;
    return isRewriteDone && files.isRewriteDone && inner.equals(files.inner);
  }

  public int hashCode() { return inner.hashCode(); }
}

/**
 * Asks Python which files a scan needs. If Python fails or takes too long, the scan reads all of
 * its files.
 */
final class Chooser {
  private static final int MAX_KNOWN_ANSWERS = 1024;
  // These threads do not keep the JVM running.
  static final ExecutorService THREADS = ThreadUtils.newDaemonCachedThreadPool("zonebloom");
  private final BiFunction choose;
  private final long timeoutMs;
  // After a timeout, no scan is asked until this time, so that a query waits only once.
  private volatile long nextAskMs = 0;
  // Answers that no index covers the filtered columns of a topic. Such an answer holds while the
  // folders that may hold an index do not change. A call of Python costs 0.7 ms.
  private final Map knownAnswers = new ConcurrentHashMap();

  Chooser(BiFunction choose, double timeoutSeconds) {
    this.choose = choose;
    this.timeoutMs = (long) (timeoutSeconds * 1000);
  }

  void choose(final Scan scan) {
    try {
      JsonNode known = (JsonNode) knownAnswers.get(scan.topic());
      if (known != null && isUnchanged(known.get("folder_times"))) {
        scan.close(known);
        return;
      }
      if (System.currentTimeMillis() < nextAskMs) {
        scan.fail("the index gave an earlier scan no answer within " + timeoutMs / 1000.0 + " s");
        return;
      }
      final String request = scan.request();
      Callable call =
          new Callable() {
            public Object call() { return choose.apply(request, scan); }
          };
      Object text = THREADS.submit(call).get(timeoutMs, TimeUnit.MILLISECONDS);
      JsonNode answer = Scan.JSON.readTree((String) text);
      scan.close(answer);
      if (answer.get("folder_times").isEmpty()) return;
      if (knownAnswers.size() >= MAX_KNOWN_ANSWERS) knownAnswers.clear();
      knownAnswers.put(scan.topic(), answer);
    } catch (TimeoutException error) {
      nextAskMs = System.currentTimeMillis() + timeoutMs;
      scan.fail("the index gave no answer within " + timeoutMs / 1000.0 + " s");
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      scan.fail("the query was interrupted");
    } catch (ExecutionException error) {
      scan.fail("the index was not asked: " + error.getCause());
    } catch (Exception error) {
      scan.fail("the index was not asked: " + error);
    }
  }

  /** Return whether folders still have their times of modification in ms, 0 for a missing one. */
  private static boolean isUnchanged(JsonNode times) {
    Iterator paths = times.fieldNames();
    while (paths.hasNext()) {
      String path = (String) paths.next();
      if (new File(path).lastModified() != times.get(path).asLong()) return false;
    }
    return true;
  }
}

/**
 * The listed files of one scan. Python reads its roots, filters and files, and answers which of them
 * Spark has to read.
 */
public final class Scan {
  static final ObjectMapper JSON = new ObjectMapper();
  private final SparkSession session;
  private final FileIndex index;
  private final Seq filters;
  private final Seq listedDirectories;
  private Seq directories;
  private JsonNode answer = null;

  Scan(SparkSession session, FileIndex index, Seq directories, Seq filters) {
    this.session = session;
    this.index = index;
    this.listedDirectories = directories;
    this.directories = directories;
    this.filters = filters;
  }

  synchronized Seq directories() { return directories; }

  /** Return the answer of Python as JSON, null before there is one. */
  public synchronized String answer() { return answer == null ? null : answer.toString(); }

  /** Return the bytes of the chosen files. */
  synchronized long numBytes() {
    long bytes = 0;
    for (Object directory : JavaConverters.seqAsJavaList(directories)) {
      for (Object file : JavaConverters.seqAsJavaList(((PartitionDirectory) directory).files())) {
        bytes += ((FileStatusWithMetadata) file).getLen();
      }
    }
    return bytes;
  }

  /** Return the text that explain() shows behind the name of the scan. */
  synchronized String summary() {
    return answer == null ? "" : "(" + answer.get("summary").asText() + ")";
  }

  /** Store the answer of Python, and leave out the files that it marks by '0', unless it is "". */
  synchronized void close(JsonNode answer) {
    String marks = answer.get("kept").asText();
    if (!marks.isEmpty()) directories = marked(marks);
    this.answer = answer;
  }

  /** Make Spark read all files, and record the reason. */
  synchronized void fail(String reason) {
    Map failure = new HashMap();
    failure.put("summary", "zonebloom: all files; " + reason);
    failure.put("notes", new String[][] {{"INDEX_DAMAGED", reason}});
    answer = JSON.valueToTree(failure);
    directories = listedDirectories;
  }

  /** Return the root paths and the filtered columns. Whether an index may answer depends on them. */
  List topic() {
    Set columns = new HashSet();
    for (Object term : JavaConverters.seqAsJavaList(filters)) {
      for (Object column : JavaConverters.seqAsJavaList(((Expression) term).references().toSeq())) {
        columns.add(((Attribute) column).name());
      }
    }
    return Arrays.asList(new Object[] {index.rootPaths(), columns});
  }

  /**
   * Return, as JSON, the root paths, the partition columns, the filters of the scan and the types of
   * their columns. A row must pass all filters.
   */
  public String request() {
    List roots = new ArrayList();
    for (Object root : JavaConverters.seqAsJavaList(index.rootPaths())) roots.add(root.toString());
    List terms = new ArrayList();
    Map types = new LinkedHashMap();
    for (Object term : JavaConverters.seqAsJavaList(filters)) {
      terms.add(Filters.condition((Expression) term));
      for (Object column : JavaConverters.seqAsJavaList(((Expression) term).references().toSeq())) {
        types.put(((Attribute) column).name(), ((Attribute) column).dataType().json());
      }
    }
    Map request = new HashMap();
    request.put("types", types);
    request.put("roots", roots);
    request.put("partition_columns", index.partitionSchema().fieldNames());
    // Spark finds columns in files by the setting of the relation's session. SQLConf.get() would
    // return the settings of the session that is active in this thread, which may be another.
    request.put("case_sensitive", session.sessionState().conf().caseSensitiveAnalysis());
    request.put("filters", terms);
    request.put("hybrid_scan", setting("zonebloom.index.hybridscan.enabled"));
    request.put("system_path", setting("zonebloom.system.path"));
    request.put("warehouse", session.conf().get("spark.sql.warehouse.dir"));
    request.put("digest", digest());
    return JSON.valueToTree(request).toString();
  }

  /** Return a setting of the session, which may have the prefix "spark.", or null. */
  private String setting(String key) {
    scala.Option value = session.conf().getOption(key);
    if (value.isEmpty()) value = session.conf().getOption("spark." + key);
    return value.isEmpty() ? null : value.get().toString();
  }

  /**
   * Return the folder, name, size in bytes and modification time in ms of each listed file. The
   * folder is empty if it is that of the file before. A NUL, which no path has, ends each field.
   */
  public String files() {
    StringBuilder text = new StringBuilder();
    String folder = "";
    for (Object item : statuses()) {
      FileStatusWithMetadata status = (FileStatusWithMetadata) item;
      String path = status.getPath().toString();
      int end = path.lastIndexOf('/');
      boolean isSameFolder = end == folder.length() && path.startsWith(folder);
      if (!isSameFolder) folder = path.substring(0, end);
      text.append(isSameFolder ? "" : folder).append('\0');
      text.append(path.substring(end + 1)).append('\0').append(status.getLen()).append('\0');
      text.append(status.getModificationTime()).append('\0');
    }
    return text.toString();
  }

  /**
   * Return 128 bits of a hash of the paths, sizes and modification times of the listed files.
   * Python keeps the files of an earlier scan with the same digest.
   */
  private String digest() {
    // These are two chains of XXH64 with different seeds.
    long first = 42;
    long second = 4242;
    for (Object item : statuses()) {
      FileStatusWithMetadata status = (FileStatusWithMetadata) item;
      // A URI stores its text, while Path.toString() makes a new one.
      byte[] path = status.getPath().toUri().toString().getBytes(StandardCharsets.UTF_8);
      first = XXH64.hashUnsafeBytes(path, Platform.BYTE_ARRAY_OFFSET, path.length, first);
      first = XXH64.hashLong(status.getLen(), first);
      first = XXH64.hashLong(status.getModificationTime(), first);
      second = XXH64.hashUnsafeBytes(path, Platform.BYTE_ARRAY_OFFSET, path.length, second);
      second = XXH64.hashLong(status.getLen(), second);
      second = XXH64.hashLong(status.getModificationTime(), second);
    }
    return Long.toHexString(first) + "-" + Long.toHexString(second);
  }

  private List statuses() {
    List statuses = new ArrayList();
    for (Object directory : JavaConverters.seqAsJavaList(listedDirectories)) {
      statuses.addAll(JavaConverters.seqAsJavaList(((PartitionDirectory) directory).files()));
    }
    return statuses;
  }

  /** Return the listed files without those whose character in marks is '0'. */
  private Seq marked(String marks) {
    List keptDirectories = new ArrayList();
    int fileNumber = 0;
    for (Object listed : JavaConverters.seqAsJavaList(listedDirectories)) {
      PartitionDirectory directory = (PartitionDirectory) listed;
      List files = new ArrayList();
      for (Object file : JavaConverters.seqAsJavaList(directory.files())) {
        if (marks.charAt(fileNumber++) != '0') files.add(file);
      }
      Seq kept = JavaConverters.asScalaBuffer(files).toSeq();
      keptDirectories.add(directory.copy(directory.values(), kept));
    }
    return JavaConverters.asScalaBuffer(keptDirectories).toSeq();
  }
}

/** Converts Catalyst filters to maps and lists, which one JSON text carries to Python. */
final class Filters {
  /**
   * Return whether an index may answer some of these filters. Spark adds IS NOT NULL for each key of
   * a join, and few files have nulls only, so no index is asked about that alone.
   */
  static boolean canSkip(Seq filters) {
    for (Object filter : JavaConverters.seqAsJavaList(filters)) {
      if (!(filter instanceof IsNotNull)) return true;
    }
    return false;
  }

  /**
   * Return a filter as a tree of AND, OR and NOT nodes. A leaf has the operands of a comparison,
   * and the text and column names that messages use.
   */
  static Map condition(Expression filter) {
    Map node = new HashMap();
    List terms = new ArrayList();
    Class kind = filter.getClass();
    // A class of the same name in another package may mean something else.
    node.put("kind", kind.getPackage() == And.class.getPackage() ? kind.getSimpleName() : "");
    if (kind == And.class || kind == Or.class) {
      ArrayDeque stack = new ArrayDeque();
      stack.push(filter);
      while (!stack.isEmpty()) {
        Expression next = (Expression) stack.pop();
        if (next.getClass() == kind) {
          stack.push(((BinaryOperator) next).right());
          stack.push(((BinaryOperator) next).left());
        } else {
          terms.add(condition(next));
        }
      }
      node.put("terms", terms);
    } else if (kind == Not.class) {
      terms.add(condition(((Not) filter).child()));
      node.put("terms", terms);
    } else {
      List columns = new ArrayList();
      for (Object column : JavaConverters.seqAsJavaList(filter.references().toSeq())) {
        columns.add(((Attribute) column).name());
      }
      String text = filter.toString();
      node.put("text", text.length() <= 100 ? text : text.substring(0, 97) + "...");
      node.put("columns", columns);
      node.put("operands", operands(filter));
    }
    return node;
  }

  private static List operands(Expression filter) {
    // The node does not say which character escapes.
    if (filter instanceof Like && ((Like) filter).escapeChar() != '\\') return new ArrayList();
    if (filter instanceof In) {
      List list = JavaConverters.seqAsJavaList(((In) filter).list());
      return Arrays.asList(new Object[] {operand(((In) filter).value()), literals(list)});
    }
    if (filter instanceof InSet) {
      Expression column = ((InSet) filter).child();
      Object values = ((InSet) filter).hset();
      List texts = new ArrayList();
      for (Object value : JavaConverters.asJavaIterable((scala.collection.Iterable) values)) {
        texts.add(text(value));
      }
      return Arrays.asList(new Object[] {operand(column), values(column, texts)});
    }
    List result = new ArrayList();
    for (Object child : JavaConverters.seqAsJavaList(filter.children())) {
      result.add(operand((Expression) child));
    }
    if (result.isEmpty()) result.add(operand(filter));
    return result;
  }

  /**
   * Return a column, a struct leaf, a string in lower case, the value of a map's key, a field of
   * all structs in an array, or a literal. Return an empty map for any other expression.
   */
  private static Map operand(Expression expression) {
    if (expression instanceof Literal) return literals(Collections.singletonList(expression));
    Map result = new HashMap();
    LinkedList names = new LinkedList();
    LinkedList metadata = new LinkedList();
    Expression top = expression;
    // SmallSide hides columns from Parquet's filters in this way. It changes no value.
    if (top instanceof KnownFloatingPointNormalized) top = (Expression) top.children().apply(0);
    if (top instanceof Lower) {
      result.put("lower", true);
      top = (Expression) top.children().apply(0);
    }
    boolean isElement = top instanceof GetMapValue || top instanceof ElementAt;
    if (isElement && top == expression && top.children().apply(1) instanceof Literal) {
      result.put("key", literals(Collections.singletonList(top.children().apply(1))));
      top = (Expression) top.children().apply(0);
    }
    if (top instanceof GetArrayStructFields) {
      String field = ((GetArrayStructFields) top).field().name();
      result.put("field", Collections.singletonList(field));
      top = ((GetArrayStructFields) top).child();
    }
    while (top instanceof GetStructField) {
      GetStructField step = (GetStructField) top;
      StructField field = ((StructType) step.child().dataType()).fields()[step.ordinal()];
      names.addFirst(field.name());
      metadata.addFirst(field.metadata().json());
      top = step.child();
    }
    if (top instanceof AttributeReference) {
      names.addFirst(((AttributeReference) top).name());
      metadata.addFirst(((AttributeReference) top).metadata().json());
      result.put("column", names);
      result.put("metadata", metadata);
      result.put("type", expression.dataType().catalogString());
    }
    return result;
  }

  private static Map literals(List list) {
    List texts = new ArrayList();
    if (list.isEmpty()) return new HashMap();
    Expression first = (Expression) list.get(0);
    for (Object item : list) {
      boolean hasSameType = ((Expression) item).dataType().equals(first.dataType());
      if (!(item instanceof Literal) || !hasSameType) return new HashMap();
      texts.add(text(((Literal) item).value()));
    }
    return values(first, texts);
  }

  private static Map values(Expression typed, List texts) {
    Map result = new HashMap();
    result.put("type", typed.dataType().catalogString());
    result.put("values", texts);
    return result;
  }

  /** Return Java's text of a value. Bytes and strings become hexadecimal digits. */
  private static String text(Object value) {
    if (value instanceof UTF8String) value = ((UTF8String) value).getBytes();
    if (value instanceof byte[]) return Hex.encodeHexString((byte[]) value);
    return value == null ? null : value.toString();
  }
}

/** The functions that Python calls to read and change query plans. */
public final class Plans {
  /**
   * Return a rule for a frame or for all queries of a session. Physical plans of the session then
   * describe which indexed files each scan reads.
   */
  public IndexRule rule(SparkSession session, BiFunction choose, double timeoutSeconds) {
    installStrategy(session, DescribedScanStrategy.class, new DescribedScanStrategy());
    return new IndexRule(session, new Chooser(choose, timeoutSeconds));
  }

  public void removeRule(SparkSession session) { install(session, IndexRule.class, null); }

  /** Return a listener that tells Python the folder of each write. */
  public WriteListener writeListener(Consumer written) { return new WriteListener(written); }

  /** Return a path as Spark opens it, with the scheme of its file system. */
  public String qualified(SparkSession session, String path) throws Exception {
    Path folder = new Path(path);
    FileSystem files = folder.getFileSystem(session.sessionState().newHadoopConf());
    return files.makeQualified(folder).toString();
  }

  /** Return the computed rows of a frame, or null if it reads too much or has too many rows. */
  public SmallSide smallSide(SparkSession session, Dataset frame) {
    return SmallSide.of(session, frame);
  }

  /** Give a session an optimizer rule in place of others of its class. Null only removes these. */
  static void install(SparkSession session, Class kind, Rule newRule) {
    synchronized (session) {
      Seq oldRules = session.experimental().extraOptimizations();
      session.experimental().extraOptimizations_$eq(replaced(oldRules, kind, newRule));
    }
  }

  /** Give a session a strategy in place of others of its class. */
  static void installStrategy(SparkSession session, Class kind, SparkStrategy newStrategy) {
    synchronized (session) {
      Seq oldStrategies = session.experimental().extraStrategies();
      session.experimental().extraStrategies_$eq(replaced(oldStrategies, kind, newStrategy));
    }
  }

  /** Return a list without the items of a class, and with a new item unless it is null. */
  private static Seq replaced(Seq oldItems, Class kind, Object newItem) {
    List items = new ArrayList();
    for (Object item : JavaConverters.seqAsJavaList(oldItems)) {
      if (item.getClass() != kind) items.add(item);
    }
    if (newItem != null) items.add(newItem);
    return JavaConverters.asScalaBuffer(items).toSeq();
  }

  /**
   * Return the scan of a leaf of a physical plan, or null if the leaf reads no Parquet files. The
   * scan has a result if an index was asked.
   */
  public Scan scan(Object node) {
    if (!(node instanceof FileSourceScanExec)) return null;
    FileSourceScanExec scan = (FileSourceScanExec) node;
    FileIndex files = scan.relation().location();
    if (files instanceof IndexedFiles) {
      Scan lastScan = ((IndexedFiles) files).lastScan();
      if (lastScan != null) return lastScan;
      files = ((IndexedFiles) files).inner;
    } else if (!RelationIndexer.isParquet(scan.relation())) {
      return null;
    }
    Seq filters = scan.dataFilters();
    Seq directories = files.listFiles(withoutSubqueries(scan.partitionFilters()), filters);
    return new Scan(session(scan.relation()), files, directories, filters);
  }

  /** Return the relation of a node of a logical plan, or null without Parquet files. */
  public HadoopFsRelation relation(Object node) {
    FileIndex files = files(node);
    if (files == null || ((LogicalRelation) node).isStreaming()) return null;
    HadoopFsRelation relation = (HadoopFsRelation) ((LogicalRelation) node).relation();
    return files instanceof IndexedFiles || RelationIndexer.isParquet(relation) ? relation : null;
  }

  /** Return the file index of a node of a logical plan, or null if the node reads no files. */
  static FileIndex files(Object node) {
    if (!(node instanceof LogicalRelation)) return null;
    Object relation = ((LogicalRelation) node).relation();
    return relation instanceof HadoopFsRelation ? ((HadoopFsRelation) relation).location() : null;
  }

  /** Return the session whose settings apply when Spark reads the files of a relation. */
  static SparkSession session(HadoopFsRelation relation) {
    return (SparkSession) relation.sparkSession();
  }

  /** Return the filters without subqueries. The others have no value before the query runs. */
  static Seq withoutSubqueries(Seq filters) {
    List result = new ArrayList();
    for (Object filter : JavaConverters.seqAsJavaList(filters)) {
      if (!((Expression) filter).containsPattern(TreePattern.PLAN_EXPRESSION())) result.add(filter);
    }
    return JavaConverters.asScalaBuffer(result).toSeq();
  }

  /**
   * Return a copy of a node with new fields in place of old ones. If a node has an old field twice,
   * the last one is replaced. The number of fields of a node differs between versions of Spark.
   */
  static TreeNode withFields(TreeNode node, Object[] oldFields, Object[] newFields) {
    Object[] fields = new Object[node.productArity()];
    for (int i = 0; i < fields.length; i++) fields[i] = node.productElement(i);
    for (int number = 0; number < oldFields.length; number++) {
      int i = fields.length - 1;
      while (fields[i] != oldFields[number]) i--;
      fields[i] = newFields[number];
    }
    return node.makeCopy(fields);
  }

  /** Return a relation with another file index. */
  static HadoopFsRelation withFiles(FileIndex files, HadoopFsRelation relation) {
    return relation.copy(
        files,
        relation.partitionSchema(),
        relation.dataSchema(),
        relation.bucketSpec(),
        relation.fileFormat(),
        relation.options(),
        relation.sparkSession());
  }

  /** Return a copy of a node of a file relation with another file index. */
  static TreeNode withFiles(FileIndex files, LogicalRelation node) {
    HadoopFsRelation relation = (HadoopFsRelation) node.relation();
    return withFields(node, new Object[] {relation}, new Object[] {withFiles(files, relation)});
  }
}

/** An optimizer rule that indexes the Parquet relations of each plan. */
public final class IndexRule extends Rule {
  private final SparkSession session;
  private final Chooser chooser;

  IndexRule(SparkSession session, Chooser chooser) {
    this.session = session;
    this.chooser = chooser;
  }

  /** Return the plan with indexed relations, or the same object if there is nothing to index. */
  public TreeNode apply(TreeNode plan) {
    RelationIndexer indexer = new RelationIndexer(chooser);
    TreeNode indexed = ((LogicalPlan) plan).transformUpWithSubqueries(indexer);
    for (Object files : indexer.addedFiles) ((IndexedFiles) files).finishRewrite();
    return indexer.addedFiles.isEmpty() ? plan : indexed;
  }

  /** Return a frame with indexed relations, or null if it has none. */
  public Dataset indexed(Dataset frame) {
    LogicalPlan plan = frame.queryExecution().analyzed();
    LogicalPlan indexed = (LogicalPlan) apply(plan);
    return indexed == plan ? null : Dataset.ofRows(session, indexed);
  }

  /** Apply this rule to all queries of its session. */
  public void install() { Plans.install(session, IndexRule.class, this); }
}

/** A function that changes some nodes of a plan, as Spark's transform methods take it. */
abstract class NodeChange extends scala.runtime.AbstractPartialFunction {
  /** Return the node in place of a node, or null to leave it as it is. */
  abstract Object replacement(Object node);

  public boolean isDefinedAt(Object node) { return replacement(node) != null; }

  public Object applyOrElse(Object node, scala.Function1 otherwise) {
    Object newNode = replacement(node);
    return newNode == null ? otherwise.apply(node) : newNode;
  }
}

/** A plan transformation that gives each Parquet relation an IndexedFiles as its file index. */
final class RelationIndexer extends NodeChange {
  private final Chooser chooser;
  final List addedFiles = new ArrayList();

  RelationIndexer(Chooser chooser) {
    this.chooser = chooser;
  }

  /** Return whether a relation reads Parquet files that Spark itself lists. */
  static boolean isParquet(Object relation) {
    if (!(relation instanceof HadoopFsRelation)) return false;
    Class listing = ((HadoopFsRelation) relation).location().getClass();
    return (listing == InMemoryFileIndex.class || listing == CatalogFileIndex.class)
        && ((HadoopFsRelation) relation).fileFormat().getClass() == ParquetFileFormat.class;
  }

  Object replacement(Object plan) {
    if (!(plan instanceof LogicalRelation)) return null;
    LogicalRelation node = (LogicalRelation) plan;
    if (node.isStreaming() || node.output().isEmpty() || !isParquet(node.relation())) return null;
    HadoopFsRelation relation = (HadoopFsRelation) node.relation();
    IndexedFiles files =
        new IndexedFiles(relation.location(), chooser, Plans.session(relation));
    addedFiles.add(files);
    return Plans.withFiles(files, node);
  }
}

/** Spark's planning of file scans, with the chosen files in the names of indexed scans. */
public final class DescribedScanStrategy extends SparkStrategy {
  public Seq apply(LogicalPlan plan) {
    List planned = new ArrayList();
    // Other relations of files are left to strategies that come later, such as those of Delta.
    Seq nodes = hasIndexedFiles(plan) ? FileSourceStrategy$.MODULE$.apply(plan) : Nil$.MODULE$;
    for (Object node : JavaConverters.seqAsJavaList(nodes)) {
      planned.add(((SparkPlan) node).transformUp(new ScanDescriber()));
    }
    return JavaConverters.asScalaBuffer(planned).toSeq();
  }

  private static boolean hasIndexedFiles(LogicalPlan plan) {
    for (Object leaf : JavaConverters.seqAsJavaList(plan.collectLeaves())) {
      if (Plans.files(leaf) instanceof IndexedFiles) return true;
    }
    return false;
  }
}

/** A plan transformation that adds the chosen files to the name of each indexed scan. */
final class ScanDescriber extends NodeChange {
  Object replacement(Object plan) {
    if (!(plan instanceof FileSourceScanExec)) return null;
    FileSourceScanExec scan = (FileSourceScanExec) plan;
    if (!(scan.relation().location() instanceof IndexedFiles)) return null;
    Seq filters = Plans.withoutSubqueries(scan.dataFilters());
    if (!Filters.canSkip(filters)) return null;
    IndexedFiles files = ((IndexedFiles) scan.relation().location()).copyForLeaf();
    Seq partitionFilters = Plans.withoutSubqueries(scan.partitionFilters());
    String summary = files.scan(partitionFilters, filters).summary();
    if (summary.isEmpty()) return null;
    // The relation keeps its name: Spark pushes filters of struct fields only into relations whose
    // text is that of a format which it knows.
    return Plans.withFields(
        scan,
        new Object[] {scan.relation(), scan.tableIdentifier()},
        new Object[] {
          Plans.withFiles(files, scan.relation()),
          scala.Option.apply(described(scan.tableIdentifier(), summary))
        });
  }

  /** Return the name of a table with a summary behind it, or only the summary. */
  private static TableIdentifier described(scala.Option table, String summary) {
    if (table.isEmpty()) {
      return new TableIdentifier(summary, scala.Option.empty(), scala.Option.empty());
    }
    TableIdentifier name = (TableIdentifier) table.get();
    return new TableIdentifier(name.table() + " " + summary, name.database(), name.catalog());
  }
}
