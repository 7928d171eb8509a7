package zonebloom;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.function.BiFunction;
import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Gives all sessions of an application the rules, if spark.sql.extensions names this class. */
public final class Extensions extends scala.runtime.AbstractFunction1 {
  public Object apply(Object extensions) {
    // Spark calls the makers of resolution rules once for each session, before its first query.
    ((SparkSessionExtensions) extensions).injectResolutionRule(new RuleInstaller());
    return scala.runtime.BoxedUnit.UNIT;
  }
}

/** Installs the rules in a session when Spark asks it for a rule of the session's analyzer. */
final class RuleInstaller extends scala.runtime.AbstractFunction1 {
  private Service service = null;

  public Object apply(Object session) {
    try {
      install((SparkSession) session);
    } catch (Exception error) {
      Service.LOG.warn("Spark reads all files: the rules of zonebloom were not installed", error);
    } catch (LinkageError error) {
      Service.LOG.warn("Spark reads all files: the jar is for another version of Spark", error);
    }
    return new EmptyRule();
  }

  private synchronized void install(SparkSession session) {
    // The defaults are those of optimizer_rule.py.
    SparkConf conf = session.sparkContext().conf();
    long timeoutMs = conf.getTimeAsMs("spark.zonebloom.timeout", "60s");
    long minJoinScanBytes = conf.getSizeAsBytes("spark.zonebloom.minJoinScanBytes", "64m");
    // The sessions that getOrCreate() and newSession() made of one another share the service.
    if (service == null) {
      service = new Service(session, timeoutMs);
      session.sparkContext().addSparkListener(new ServiceStopper(service));
    }
    new Plans().rule(session, service, timeoutMs / 1000.0, minJoinScanBytes).install();
  }
}

/** Ends the service with its application. */
final class ServiceStopper extends SparkListener {
  private final Service service;

  ServiceStopper(Service service) {
    this.service = service;
  }

  public void onApplicationEnd(SparkListenerApplicationEnd event) { service.end(); }
}

/** A rule for the analyzer that changes nothing. */
final class EmptyRule extends Rule {
  public TreeNode apply(TreeNode plan) { return plan; }
}

/**
 * A Python process that chooses the files of scans. It starts with the first scan, and ends when
 * its input does. zonebloom/spark/jar/service.py describes the messages.
 */
final class Service implements BiFunction {
  static final Logger LOG = LoggerFactory.getLogger("zonebloom");
  private static final long MIN_START_INTERVAL_MS = 60000;
  // A process that is busy for this many timeouts is taken for hanging.
  private static final long MAX_BUSY_TIMEOUTS = 10;
  private final long maxBusyMs;
  private final List command;
  private final String settings;
  private volatile Process process = null;
  private BufferedReader input;
  private BufferedWriter output;
  private long nextStartMs = 0;
  private volatile long busySinceMs = 0;

  Service(SparkSession session, long timeoutMs) {
    maxBusyMs = MAX_BUSY_TIMEOUTS * timeoutMs;
    SparkConf conf = session.sparkContext().conf();
    String python = conf.get("spark.zonebloom.python", "python3");
    command = Arrays.asList(new Object[] {python, "-m", "zonebloom.spark.jar.service"});
    Map settings = new HashMap();
    settings.put("index_dirs", conf.get("spark.zonebloom.indexDirs", "").split(",", 0));
    settings.put("s3a", session.sessionState().newHadoopConf().getPropsWithPrefix("fs.s3a."));
    this.settings = new ObjectMapper().valueToTree(settings).toString();
  }

  public Object apply(Object request, Object scan) {
    // End a process that hangs, so that this scan need not wait for it.
    long since = busySinceMs;
    if (since != 0 && System.currentTimeMillis() - since > maxBusyMs) end();
    return choose((String) request, (Scan) scan);
  }

  private synchronized String choose(String request, Scan scan) {
    // The scan may have waited here for longer than it waits for a result.
    if (scan.isClosed()) return null;
    busySinceMs = System.currentTimeMillis();
    try {
      if (process == null || !process.isAlive()) start();
      send(request);
      while (true) {
        String message = input.readLine();
        if (message == null) throw new IOException("the Python process ended");
        if (message.startsWith("done ")) return message.substring(5);
        if (message.equals("digest")) send(scan.digest());
        else if (message.equals("files")) send(scan.files());
        else if (message.startsWith("keep ")) send(String.valueOf(scan.keep(message.substring(5))));
        else throw new IOException("the Python process wrote " + message);
      }
    } catch (Exception error) {
      end();
      process = null;
      LOG.warn("Spark reads all files of a scan: " + command + " gave no answer: " + error);
      throw new IllegalStateException(error);
    } finally {
      busySinceMs = 0;
    }
  }

  /** End the process. The next scan starts another. */
  void end() {
    Process running = process;
    if (running != null) running.destroyForcibly();
  }

  private void start() throws IOException {
    long now = System.currentTimeMillis();
    if (now < nextStartMs) throw new IOException("it started and ended within a minute");
    nextStartMs = now + MIN_START_INTERVAL_MS;
    ProcessBuilder builder = new ProcessBuilder(new String[0]);
    builder.command(command);
    builder.redirectError(ProcessBuilder.Redirect.INHERIT);
    process = builder.start();
    input = new BufferedReader(
        new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    output = new BufferedWriter(
        new OutputStreamWriter(process.getOutputStream(), StandardCharsets.UTF_8));
    send(settings);
  }

  private void send(String line) throws IOException {
    output.write(line);
    output.newLine();
    output.flush();
  }
}
