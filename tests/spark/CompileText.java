import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;

/** Compiles a text with several public classes, which javac itself takes only from several files. */
class CompileText {
  public static void main(String[] arguments) throws Exception {
    String text = Files.readString(Path.of(arguments[0]));
    URI name = URI.create("string:///Text.java");
    JavaFileObject source =
        new SimpleJavaFileObject(name, JavaFileObject.Kind.SOURCE) {
          public CharSequence getCharContent(boolean ignoresErrors) { return text; }

          public boolean isNameCompatible(String name, JavaFileObject.Kind kind) { return true; }
        };
    List<String> options = List.of("-cp", arguments[1], "-d", arguments[2], "-proc:none", "-nowarn");
    boolean isCompiled =
        ToolProvider.getSystemJavaCompiler()
            .getTask(null, null, null, options, null, List.of(source))
            .call();
    System.exit(isCompiled ? 0 : 1);
  }
}
