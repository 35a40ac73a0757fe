// Prints what Java and Kafka make of certificates and mapping rules: a line of input gives a line of output.
// C <TAB> certificate in base64: its subject; R <TAB> rules <TAB> subject: the mapped name. "=" is an answer, "!" an error.
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

public class CertificateNames {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\t", -1);
            String answer;
            try {
                if (parts[0].equals("C")) {
                    byte[] bytes = Base64.getDecoder().decode(parts[1]);
                    X509Certificate found = (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(bytes));
                    answer = "=" + found.getSubjectX500Principal().getName();
                } else {
                    answer = "=" + SslPrincipalMapper.fromRules(parts[1]).getName(parts[2]);
                }
            } catch (Exception error) {
                answer = "!";
            }
            System.out.println(Base64.getEncoder().encodeToString(answer.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
