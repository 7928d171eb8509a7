package zonebloom;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.BiFunction;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.*;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Files as Spark lists them, without those that an index says a scan can do without. */
public final class IndexedFiles implements FileIndex {
  private static final int MOST_SCANS = 8;
  public final FileIndex inner;
  private final Chooser chooser;
  private final SparkContext context;
  // Scans by query and filters: one that is planned and then runs is chosen once.
  private final Map scans;
  // The scan that listed files last.
  private volatile Scan last = null;
  // False until the plan that is rewritten holds this listing in all of its nodes.
  private boolean isPlaced = false;

  IndexedFiles(FileIndex inner, Chooser chooser, SparkContext context) {
    this(inner, chooser, context, new ConcurrentHashMap());
  }

  private IndexedFiles(FileIndex inner, Chooser chooser, SparkContext context, Map scans) {
    this.inner = inner;
    this.chooser = chooser;
    this.context = context;
    this.scans = scans;
  }

  /** Return the same listing for one leaf of a physical plan, which then has its own answer. */
  IndexedFiles forOneLeaf() {
    IndexedFiles files = new IndexedFiles(inner, chooser, context, scans);
    files.place();
    return files;
  }

  /** Return what the index answered when files were listed last, null if it was not asked. */
  String lastAnswer() {
    Scan scan = last;
    return scan == null ? null : scan.answer();
  }

  public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
    if (dataFilters.isEmpty()) return inner.listFiles(partitionFilters, dataFilters);
    return scan(partitionFilters, dataFilters).directories();
  }

  /** Choose the files of a scan: once in a query that runs, and again if it was planned before. */
  Scan scan(Seq partitionFilters, Seq dataFilters) {
    Object query = context.getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    List asked = Arrays.asList(new Object[] {query, partitionFilters, dataFilters});
    Scan scan = query == null ? null : (Scan) scans.get(asked);
    if (scan == null) {
      scan = new Scan(inner, inner.listFiles(partitionFilters, dataFilters), dataFilters);
      chooser.choose(scan);
      if (scans.size() >= MOST_SCANS) scans.clear();
      if (query != null) scans.put(asked, scan);
    }
    last = scan;
    return scan;
  }

  public Seq rootPaths() { return inner.rootPaths(); }
  public String[] inputFiles() { return inner.inputFiles(); }
  public void refresh() { inner.refresh(); }
  public long sizeInBytes() { return inner.sizeInBytes(); }
  public StructType partitionSchema() { return inner.partitionSchema(); }
  public scala.Option metadataOpsTimeNs() { return inner.metadataOpsTimeNs(); }

  void place() { isPlaced = true; }

  /**
   * An indexed listing equals the plain one, because a scan of either gives the same rows. Spark
   * compares relations to refuse an overwrite of a table that is read, to drop cached frames and
   * to reuse exchanges. While a plan is rewritten the two differ: TreeNode.withNewChildren keeps
   * the old children if the new ones are equal.
   */
  public boolean equals(Object other) {
    if (other instanceof IndexedFiles) return inner.equals(((IndexedFiles) other).inner);
    return isPlaced && inner.equals(other);
  }

  public int hashCode() { return inner.hashCode(); }
}

/** Asks Python for the files of scans, for a limited time. All files are read if it fails. */
final class Chooser {
  private static final ExecutorService THREADS = Executors.newCachedThreadPool(new Daemons());
  private final BiFunction choose;
  private final double seconds;

  Chooser(BiFunction choose, double seconds) {
    this.choose = choose;
    this.seconds = seconds;
  }

  void choose(Scan scan) {
    try {
      Future answer = THREADS.submit(new Call(choose, scan.question(), scan));
      scan.close((String) answer.get((long) (seconds * 1000), TimeUnit.MILLISECONDS));
    } catch (TimeoutException error) {
      scan.fail("the index gave no answer within " + seconds + " s");
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      scan.fail("the query was interrupted");
    } catch (ExecutionException error) {
      scan.fail("the index was not asked: " + error.getCause());
    } catch (Exception error) {
      scan.fail("the index was not asked: " + error);
    }
  }
}

/** One call of the function that chooses files. */
final class Call implements Callable {
  private final BiFunction choose;
  private final String question;
  private final Scan scan;

  Call(BiFunction choose, String question, Scan scan) {
    this.choose = choose;
    this.question = question;
    this.scan = scan;
  }

  public Object call() { return choose.apply(question, scan); }
}

/** Makes threads that do not keep the JVM running. */
final class Daemons implements ThreadFactory {
  public Thread newThread(Runnable task) {
    Thread thread = new Thread(task, "zonebloom");
    thread.setDaemon(true);
    return thread;
  }
}

/** One listing of files for a scan, as Python asks about it, and chooses of it. */
public final class Scan {
  private static final ObjectMapper JSON = new ObjectMapper();
  private final FileIndex index;
  private final Seq filters;
  private final Seq listedDirectories;
  private Seq directories;
  private String answer = null;
  private boolean isClosed = false;

  Scan(FileIndex index, Seq directories, Seq filters) {
    this.index = index;
    this.listedDirectories = directories;
    this.directories = directories;
    this.filters = filters;
  }

  synchronized Seq directories() { return directories; }

  synchronized String answer() { return answer; }

  /** Return what the name of the scan says of the answer, as explain() shows it. */
  String summary() {
    try {
      return " (" + JSON.readTree(answer()).get("summary").asText() + ")";
    } catch (Exception error) {
      return "";
    }
  }

  /** Take an answer of Python, after which the chosen files do not change any more. */
  synchronized void close(String answer) {
    this.answer = answer;
    isClosed = true;
  }

  /** Read all files, for a reason. */
  synchronized void fail(String reason) {
    Map problem = new HashMap();
    problem.put("summary", "zonebloom: all files; " + reason);
    problem.put("problem", reason);
    close(JSON.valueToTree(problem).toString());
    directories = listedDirectories;
  }

  /** Root paths, columns whose values come from paths, and the filters, all of which hold. */
  public String question() {
    List roots = new ArrayList();
    for (Object root : CollectionConverters.asJava(index.rootPaths())) roots.add(root.toString());
    List terms = new ArrayList();
    for (Object term : CollectionConverters.asJava(filters)) {
      terms.add(Filters.condition((Expression) term));
    }
    Map question = new HashMap();
    question.put("roots", roots);
    question.put("partition_columns", index.partitionSchema().fieldNames());
    question.put("case_sensitive", SQLConf.get().caseSensitiveAnalysis());
    question.put("filters", terms);
    return JSON.valueToTree(question).toString();
  }

  /** By their folders, names, sizes and modification times of the files. */
  public String files() throws Exception {
    return JSON.writeValueAsString(listed());
  }

  /** What tells these files from those of another listing. */
  public String digest() throws Exception {
    byte[] bytes = MessageDigest.getInstance("SHA-256").digest(JSON.writeValueAsBytes(listed()));
    return HexFormat.of().formatHex(bytes);
  }

  private List listed() {
    List folders = new ArrayList();
    String folder = null;
    List[] columns = null;
    for (Object directory : CollectionConverters.asJava(listedDirectories)) {
      for (Object each : CollectionConverters.asJava(((PartitionDirectory) directory).files())) {
        FileStatusWithMetadata file = (FileStatusWithMetadata) each;
        String path = file.getPath().toString();
        int end = path.lastIndexOf('/');
        if (!path.substring(0, end).equals(folder)) {
          folder = path.substring(0, end);
          columns = new List[] {new ArrayList(), new ArrayList(), new ArrayList()};
          folders.add(new Object[] {folder, columns[0], columns[1], columns[2]});
        }
        columns[0].add(path.substring(end + 1));
        columns[1].add(file.getLen());
        columns[2].add(file.getModificationTime());
      }
    }
    return folders;
  }

  /** Keep the files whose place in a text has no 0. Return false if it is too late for that. */
  public synchronized boolean keep(String marks) {
    if (isClosed) return false;
    List result = new ArrayList();
    int at = 0;
    for (Object each : CollectionConverters.asJava(listedDirectories)) {
      PartitionDirectory directory = (PartitionDirectory) each;
      List files = new ArrayList();
      for (Object file : CollectionConverters.asJava(directory.files())) {
        if (marks.charAt(at++) != '0') files.add(file);
      }
      result.add(directory.copy(directory.values(), CollectionConverters.asScala(files).toSeq()));
    }
    directories = CollectionConverters.asScala(result).toSeq();
    return true;
  }
}

/** Filters in a form that Python reads at once. */
final class Filters {
  /** AND, OR and NOT over what compares; of that its text and columns, to speak of it. */
  static Map condition(Expression filter) {
    Map node = new HashMap();
    List terms = new ArrayList();
    Class kind = filter.getClass();
    // A class of the same name elsewhere, or one made of these, means something else.
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
      for (Object column : CollectionConverters.asJava(filter.references().toSeq())) {
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
    if (filter instanceof In) {
      List list = CollectionConverters.asJava(((In) filter).list());
      return Arrays.asList(new Object[] {operand(((In) filter).value()), literals(list)});
    }
    if (filter instanceof InSet) {
      Expression column = ((InSet) filter).child();
      Object values = ((InSet) filter).hset();
      List texts = new ArrayList();
      for (Object value : CollectionConverters.asJava((scala.collection.Iterable) values)) {
        texts.add(text(value));
      }
      return Arrays.asList(new Object[] {operand(column), values(column, texts)});
    }
    List result = new ArrayList();
    for (Object child : CollectionConverters.asJava(filter.children())) {
      result.add(operand((Expression) child));
    }
    if (result.isEmpty()) result.add(operand(filter));
    return result;
  }

  /** A column or leaf of structs, a literal, or nothing that is known. */
  private static Map operand(Expression filter) {
    if (filter instanceof Literal) return literals(Collections.singletonList(filter));
    Map result = new HashMap();
    LinkedList names = new LinkedList();
    LinkedList metadata = new LinkedList();
    Expression top = filter;
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
      result.put("type", filter.dataType().catalogString());
    }
    return result;
  }

  private static Map literals(List list) {
    List texts = new ArrayList();
    if (list.isEmpty()) return new HashMap();
    Expression first = (Expression) list.get(0);
    for (Object item : list) {
      boolean same = ((Expression) item).dataType().equals(first.dataType());
      if (!(item instanceof Literal) || !same) return new HashMap();
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

  /** A value as Java writes it, bytes and strings as hexadecimal digits. */
  private static String text(Object value) {
    if (value instanceof UTF8String) value = ((UTF8String) value).getBytes();
    if (value instanceof byte[]) return HexFormat.of().formatHex((byte[]) value);
    return value == null ? null : value.toString();
  }
}

/** What Python does with plans. */
public final class Plans {
  /** Return the plan with an index behind its relations of Parquet files, null if it has none. */
  public LogicalPlan indexed(LogicalPlan plan, BiFunction choose, double seconds) {
    LogicalPlan indexed = Indexing.apply(plan, new Chooser(choose, seconds));
    return indexed == plan ? null : indexed;
  }

  /** Has each query of a session ask, or none where there is nobody to be asked. */
  public void enable(SparkSession session, BiFunction choose, double seconds) {
    List rules = new ArrayList();
    for (Object rule : CollectionConverters.asJava(session.experimental().extraOptimizations())) {
      if (!(rule instanceof IndexRule)) rules.add(rule);
    }
    if (choose != null) rules.add(new IndexRule(new Chooser(choose, seconds)));
    session.experimental().extraOptimizations_$eq(CollectionConverters.asScala(rules).toSeq());
  }

  /** Has the plans of a session tell what is read of indexed files. */
  public void tell(SparkSession session) {
    List strategies = new ArrayList();
    for (Object strategy : CollectionConverters.asJava(session.experimental().extraStrategies())) {
      if (strategy instanceof IndexedScans) return;
      strategies.add(strategy);
    }
    strategies.add(new IndexedScans());
    session.experimental().extraStrategies_$eq(CollectionConverters.asScala(strategies).toSeq());
  }

  /** What a leaf of a physical plan asks, null where it lists no Parquet files. */
  public Scan scan(Object node) {
    if (!(node instanceof FileSourceScanExec)) return null;
    FileSourceScanExec scan = (FileSourceScanExec) node;
    FileIndex files = scan.relation().location();
    if (files instanceof IndexedFiles) files = ((IndexedFiles) files).inner;
    else if (!Indexing.isParquet(scan.relation())) return null;
    Seq all = files.listFiles(known(scan.partitionFilters()), scan.dataFilters());
    return new Scan(files, all, scan.dataFilters());
  }

  /** Return what an index answered for a leaf of a physical plan, null if none was asked. */
  public String answer(Object node) {
    FileIndex files = ((FileSourceScanExec) node).relation().location();
    return files instanceof IndexedFiles ? ((IndexedFiles) files).lastAnswer() : null;
  }

  /** Filters that are known before the query runs, as what a subquery answers is not. */
  static Seq known(Seq filters) {
    List known = new ArrayList();
    for (Object filter : CollectionConverters.asJava(filters)) {
      if (!((Expression) filter).containsPattern(TreePattern.PLAN_EXPRESSION())) known.add(filter);
    }
    return CollectionConverters.asScala(known).toSeq();
  }

  /** A node over another relation; how many fields it has differs between versions of Spark. */
  static TreeNode over(HadoopFsRelation relation, TreeNode node) {
    Object[] fields = new Object[node.productArity()];
    for (int at = 1; at < fields.length; at++) fields[at] = node.productElement(at);
    fields[0] = relation;
    return node.makeCopy(fields);
  }
}

/** Indexes the relations of each plan that a session optimizes. */
public final class IndexRule extends Rule {
  private final Chooser chooser;

  IndexRule(Chooser chooser) {
    this.chooser = chooser;
  }

  public TreeNode apply(TreeNode plan) {
    return Indexing.apply((LogicalPlan) plan, chooser);
  }
}

/** Puts an index behind the listing of each relation of Parquet files. */
final class Indexing extends scala.runtime.AbstractPartialFunction {
  private final Chooser chooser;
  private final List added = new ArrayList();

  private Indexing(Chooser chooser) {
    this.chooser = chooser;
  }

  /** Return the plan with indexed relations, or the same object if there is nothing to index. */
  static LogicalPlan apply(LogicalPlan plan, Chooser chooser) {
    Indexing indexing = new Indexing(chooser);
    LogicalPlan indexed = (LogicalPlan) plan.transformUpWithSubqueries(indexing);
    for (Object files : indexing.added) ((IndexedFiles) files).place();
    return indexing.added.isEmpty() ? plan : indexed;
  }

  /** Whether a relation is one of Parquet files that Spark itself lists. */
  static boolean isParquet(Object relation) {
    if (!(relation instanceof HadoopFsRelation)) return false;
    Class listing = ((HadoopFsRelation) relation).location().getClass();
    return (listing == InMemoryFileIndex.class || listing == CatalogFileIndex.class)
        && ((HadoopFsRelation) relation).fileFormat().getClass() == ParquetFileFormat.class;
  }

  public boolean isDefinedAt(Object plan) {
    return plan instanceof LogicalRelation
        && !((LogicalRelation) plan).isStreaming()
        && !((LogicalRelation) plan).output().isEmpty()
        && isParquet(((LogicalRelation) plan).relation());
  }

  public Object applyOrElse(Object plan, scala.Function1 otherwise) {
    if (!isDefinedAt(plan)) return otherwise.apply(plan);
    LogicalRelation node = (LogicalRelation) plan;
    HadoopFsRelation relation = (HadoopFsRelation) node.relation();
    SparkContext context = relation.sparkSession().sparkContext();
    IndexedFiles files = new IndexedFiles(relation.location(), chooser, context);
    added.add(files);
    return Plans.over(
        relation.copy(
            files,
            relation.partitionSchema(),
            relation.dataSchema(),
            relation.bucketSpec(),
            relation.fileFormat(),
            relation.options(),
            relation.sparkSession()),
        node);
  }
}

/** Plans scans as Spark does, and has those of indexed files say which are read. */
public final class IndexedScans extends SparkStrategy {
  public Seq apply(LogicalPlan plan) {
    List planned = new ArrayList();
    for (Object node : CollectionConverters.asJava(FileSourceStrategy$.MODULE$.apply(plan))) {
      planned.add(((SparkPlan) node).transformUp(new Telling()));
    }
    return CollectionConverters.asScala(planned).toSeq();
  }
}

/** Names a scan of indexed files by what is chosen of them. */
final class Telling extends scala.runtime.AbstractPartialFunction {
  public boolean isDefinedAt(Object plan) {
    return plan instanceof FileSourceScanExec
        && ((FileSourceScanExec) plan).relation().location() instanceof IndexedFiles;
  }

  public Object applyOrElse(Object plan, scala.Function1 otherwise) {
    if (!isDefinedAt(plan)) return otherwise.apply(plan);
    FileSourceScanExec scan = (FileSourceScanExec) plan;
    Seq filters = Plans.known(scan.dataFilters());
    if (filters.isEmpty()) return scan;
    IndexedFiles files = ((IndexedFiles) scan.relation().location()).forOneLeaf();
    String text = files.scan(Plans.known(scan.partitionFilters()), filters).summary();
    return Plans.over(new ToldRelation(scan.relation(), files, text), scan);
  }
}

/** A relation whose name, which `explain` shows, tells what is read of it. */
final class ToldRelation extends HadoopFsRelation {
  private final String text;

  ToldRelation(HadoopFsRelation relation, IndexedFiles files, String text) {
    super(
        files,
        relation.partitionSchema(),
        relation.dataSchema(),
        relation.bucketSpec(),
        relation.fileFormat(),
        relation.options(),
        relation.sparkSession());
    this.text = text;
  }

  public String toString() { return super.toString() + text; }

  // Spark keeps a node in place of one that is equal.
  public boolean canEqual(Object other) { return other instanceof ToldRelation; }
  public boolean equals(Object other) { return canEqual(other) && super.equals(other); }
  public int hashCode() { return super.hashCode(); }
}
