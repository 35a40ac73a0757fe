// Asks Kafka's own StandardAuthorizer. Reads commands from standard input, one a line, with fields separated by tabs:
//   world  SUPER_USERS  ALLOW_IF_NO_ACL        begins a new authorizer
//   acl    TYPE NAME PATTERN PRINCIPAL HOST OPERATION PERMISSION   (numbers of Kafka's enums, and texts)
//   ask    PRINCIPAL_NAME HOST OPERATION TYPE NAME
//   any    PRINCIPAL_NAME HOST OPERATION TYPE
// Writes a line for each question: + or -, then the audit line that Kafka writes.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

public class AuthorizerAnswers {
    record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() { return "SASL"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.SASL_PLAINTEXT; }
        public int requestType() { return 1; }
        public int requestVersion() { return 12; }
        public String clientId() { return "oracle"; }
        public int correlationId() { return 7; }
    }

    static Context context(String name, String host) throws Exception {
        return new Context(new KafkaPrincipal("User", name), InetAddress.getByName(host));
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StandardAuthorizer authorizer = null;
        long id = 0;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] f = line.split("\t", -1);
            switch (f[0]) {
                case "world" -> {
                    authorizer = new StandardAuthorizer();
                    authorizer.configure(Map.of("node.id", "1", "super.users", f[1], "allow.everyone.if.no.acl.found", f[2]));
                    authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
                    authorizer.completeInitialLoad();
                }
                case "acl" -> authorizer.addAcl(new Uuid(1, ++id), new StandardAcl(
                    ResourceType.fromCode(Byte.parseByte(f[1])), f[2], PatternType.fromCode(Byte.parseByte(f[3])), f[4], f[5],
                    AclOperation.fromCode(Byte.parseByte(f[6])), AclPermissionType.fromCode(Byte.parseByte(f[7]))));
                case "ask" -> {
                    Action action = new Action(AclOperation.fromCode(Byte.parseByte(f[3])),
                        new ResourcePattern(ResourceType.fromCode(Byte.parseByte(f[4])), f[5], PatternType.LITERAL), 2, true, true);
                    boolean allowed = authorizer.authorize(context(f[1], f[2]), List.of(action)).get(0) == AuthorizationResult.ALLOWED;
                    System.out.println("answer " + (allowed ? "+" : "-"));
                }
                default -> {
                    boolean allowed = authorizer.authorizeByResourceType(context(f[1], f[2]),
                        AclOperation.fromCode(Byte.parseByte(f[3])), ResourceType.fromCode(Byte.parseByte(f[4]))) == AuthorizationResult.ALLOWED;
                    System.out.println("answer " + (allowed ? "+" : "-"));
                }
            }
        }
    }
}
