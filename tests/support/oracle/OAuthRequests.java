import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.SaslConfigs;
import org.apache.kafka.common.security.oauthbearer.JwtRetriever;

/** Gets a token by Kafka's own classes for each line of the input, [settings, JAAS options] in JSON; prints token or failed. */
public class OAuthRequests {
    public static void main(String[] arguments) throws Exception {
        ConfigDef keys = new ConfigDef();
        SaslConfigs.addClientSaslSupport(keys);
        Scanner lines = new Scanner(System.in, "UTF-8");
        while (lines.hasNextLine()) {
            JsonNode line = new ObjectMapper().readTree(lines.nextLine());
            System.out.println(outcome(keys.parse(texts(line.get(0))), texts(line.get(1))));
        }
    }

    private static String outcome(Map<String, Object> settings, Map<String, String> jaas) {
        AppConfigurationEntry module = new AppConfigurationEntry("OAuthBearerLoginModule",
            AppConfigurationEntry.LoginModuleControlFlag.REQUIRED, jaas);
        try {
            Class<?> found = (Class<?>) settings.get(SaslConfigs.SASL_OAUTHBEARER_JWT_RETRIEVER_CLASS);
            JwtRetriever retriever = (JwtRetriever) found.getDeclaredConstructor().newInstance();
            retriever.configure(settings, "OAUTHBEARER", List.of(module));
            return retriever.retrieve().isEmpty() ? "" : "token";
        } catch (Exception error) {
            System.err.println(error);
            return "failed";
        }
    }

    private static Map<String, String> texts(JsonNode node) {
        Map<String, String> found = new HashMap<>();
        node.fields().forEachRemaining(each -> found.put(each.getKey(), each.getValue().asText()));
        return found;
    }
}
