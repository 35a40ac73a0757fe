// Prints what Kafka makes of Kerberos principals: a line of input gives a line of output.
// default realm <TAB> rules, separated by ';' <TAB> principal: the name. "=" is an answer, "!" an error.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.security.kerberos.KerberosName;
import org.apache.kafka.common.security.kerberos.KerberosShortNamer;

public class KerberosNames {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\t", -1);
            String answer;
            try {
                KerberosShortNamer namer = KerberosShortNamer.fromUnparsedRules(parts[0], Arrays.asList(parts[1].split(";")));
                answer = "=" + namer.shortName(KerberosName.parse(parts[2]));
            } catch (Exception error) {
                answer = "!";
            }
            System.out.println(Base64.getEncoder().encodeToString(answer.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
