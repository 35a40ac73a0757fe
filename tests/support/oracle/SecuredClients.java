// Runs Kafka's Java clients against one cluster: a line of input gives a line of output.
// KIND <TAB> NAME <TAB> FILE: the file has client properties. The lines "setup" are run first, the others side by side.
import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class SecuredClients {
    static final Duration WAIT = Duration.ofSeconds(120);

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ExecutorService threads = Executors.newFixedThreadPool(16);
        ClassLoader loader = Thread.currentThread().getContextClassLoader();
        List<String> names = new ArrayList<>();
        List<Future<String>> answers = new ArrayList<>();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\t");
            Properties properties = new Properties();
            try (FileReader file = new FileReader(parts[2])) {
                properties.load(file);
            }
            Callable<String> run = () -> {
                Thread.currentThread().setContextClassLoader(loader);
                return answer(parts[0], parts[1], properties);
            };
            names.add(parts[0] + "\t" + parts[1]);
            Future<String> future = threads.submit(run);
            answers.add(future);
            if (parts[0].equals("setup")) {
                future.get();
            }
        }
        for (int at = 0; at < names.size(); at++) {
            System.out.println("=" + names.get(at) + "\t" + answers.get(at).get().replace("\n", " "));
        }
        System.exit(0);
    }

    static String answer(String kind, String name, Properties properties) {
        try {
            switch (kind) {
                case "setup": return setup(properties);
                case "round": return round(name, properties);
                case "quotas": return quotas(properties);
                case "admin": return administer(properties);
                case "produce": return produce(name, properties);
                case "init": return init(name, properties);
                case "commit": return commit(name, properties);
                case "consume": return consume(name, properties);
                default: throw new IllegalArgumentException(kind);
            }
        } catch (Throwable error) {
            StringBuilder said = new StringBuilder();
            for (Throwable each = error; each != null; each = each.getCause()) {
                said.append(each.getClass().getName()).append(": ").append(each.getMessage()).append(" | ");
            }
            return said.toString();
        }
    }

    static AclBinding acl(ResourceType type, String name, AclOperation operation) {
        return new AclBinding(new ResourcePattern(type, name, PatternType.LITERAL),
            new AccessControlEntry("User:bob", "*", operation, AclPermissionType.ALLOW));
    }

    // Users of SCRAM, topics, and what bob may do. Each user's change of one mechanism is a request of its own.
    static String setup(Properties properties) throws Exception {
        try (Admin admin = Admin.create(properties)) {
            for (ScramMechanism mechanism : List.of(ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)) {
                for (String user : List.of("alice", "bob")) {
                    admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(
                        user, new ScramCredentialInfo(mechanism, 4096), properties.getProperty("test.password")))).all().get();
                }
            }
            admin.createTopics(List.of(new NewTopic("open", 1, (short) 1), new NewTopic("closed", 1, (short) 1))).all().get();
            admin.createAcls(List.of(
                acl(ResourceType.TOPIC, "open", AclOperation.WRITE),
                acl(ResourceType.TOPIC, "open", AclOperation.READ),
                acl(ResourceType.GROUP, "open", AclOperation.READ),
                acl(ResourceType.TRANSACTIONAL_ID, "open", AclOperation.WRITE))).all().get();
            for (String id : List.of("open", "warm")) {  // makes __transaction_state and __consumer_offsets
                produceOne(properties, "open", id);
                read(properties, "open", id, "classic", 1);
            }
        }
        return "ok";
    }

    static Properties with(Properties properties, String... more) {
        Properties found = new Properties();
        found.putAll(properties);
        for (int at = 0; at < more.length; at += 2) {
            found.setProperty(more[at], more[at + 1]);
        }
        return found;
    }

    static KafkaProducer<String, String> producer(Properties properties, String... more) {
        return new KafkaProducer<>(with(properties, more), new StringSerializer(), new StringSerializer());
    }

    static void produceOne(Properties properties, String topic, String id) throws Exception {
        try (KafkaProducer<String, String> producer = producer(properties, "transactional.id", id)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "value")).get();
            producer.commitTransaction();
        }
    }

    static int read(Properties properties, String topic, String group, String protocol, int wanted) {
        Properties all = with(properties, "group.id", group, "group.protocol", protocol, "auto.offset.reset", "earliest",
            "isolation.level", "read_committed", "enable.auto.commit", "false");
        int found = 0;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long end = System.nanoTime() + WAIT.toNanos();
            while (found < wanted && System.nanoTime() < end) {
                found += consumer.poll(Duration.ofMillis(500)).count();
            }
            consumer.commitSync();
        }
        return found;
    }

    // One transaction with offsets of a group that commits and one that aborts; both protocols of groups.
    static String round(String name, Properties properties) throws Exception {
        String topic = "java-" + name;
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(properties)) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
            try (KafkaProducer<String, String> producer = producer(properties, "transactional.id", topic)) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "aborted")).get();
                producer.abortTransaction();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "one"));
                producer.send(new ProducerRecord<>(topic, "two"));
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(7)),
                    new org.apache.kafka.clients.consumer.ConsumerGroupMetadata(topic + "-offsets"));
                producer.commitTransaction();
            }
            int classic = read(properties, topic, topic + "-classic", "classic", 2);
            int newer = read(properties, topic, topic + "-consumer", "consumer", 2);
            List<String> offsets = new ArrayList<>();
            for (String group : List.of("-offsets", "-classic", "-consumer")) {
                offsets.add(String.valueOf(admin.listConsumerGroupOffsets(topic + group, new ListConsumerGroupOffsetsOptions().requireStable(true))
                    .partitionsToOffsetAndMetadata().get().get(partition).offset()));
            }
            return "read " + classic + " and " + newer + ", offsets " + offsets;
        }
    }

    static ClientQuotaAlteration quota(Map<String, String> entity, String key, Double value) {
        return new ClientQuotaAlteration(new ClientQuotaEntity(new java.util.HashMap<>(entity)),
            List.of(new ClientQuotaAlteration.Op(key, value)));
    }

    static String quotas(Properties properties) throws Exception {
        Map<String, String> everyone = new java.util.HashMap<>();
        everyone.put("user", null);
        try (Admin admin = Admin.create(properties)) {
            for (Double value : new Double[] {1.5e9, null}) {
                Collection<ClientQuotaAlteration> changes = List.of(
                    quota(Map.of("user", "java"), "producer_byte_rate", value),
                    quota(Map.of("user", "java", "client-id", "app"), "request_percentage", value),
                    quota(everyone, "consumer_byte_rate", value),
                    quota(Map.of("ip", "10.3.2.1"), "connection_creation_rate", value == null ? null : 77.0));
                admin.alterClientQuotas(changes).all().get();
                if (value != null) {
                    TreeSet<String> found = new TreeSet<>();
                    for (long end = System.nanoTime() + WAIT.toNanos(); found.size() < 4 && System.nanoTime() < end; ) {
                        Thread.sleep(50);  // the broker that is asked learns of them later
                        found.clear();
                        admin.describeClientQuotas(ClientQuotaFilter.contains(List.of(ClientQuotaFilterComponent.ofEntityType("user"))))
                            .entities().get().forEach((entity, values) -> found.add(new java.util.TreeMap<>(entity.entries()) + "=" + values));
                        admin.describeClientQuotas(ClientQuotaFilter.containsOnly(List.of(ClientQuotaFilterComponent.ofEntity("ip", "10.3.2.1"))))
                            .entities().get().forEach((entity, values) -> found.add(entity.entries() + "=" + values));
                    }
                    try {
                        admin.alterClientQuotas(List.of(quota(Map.of("ip", "10.3.2.1"), "producer_byte_rate", 1.0))).all().get();
                    } catch (ExecutionException error) {
                        found.add(String.valueOf(error.getCause()));
                    }
                    properties.setProperty("test.found", found.toString());
                }
            }
            return properties.getProperty("test.found");
        }
    }

    static String administer(Properties properties) throws Exception {
        try (Admin admin = Admin.create(properties)) {
            admin.createTopics(List.of(new NewTopic("forbidden", 1, (short) 1))).all().get();
            return "ok";
        }
    }

    // NAME of the next four: what the case is about, a colon, and the name of the topic, transactional id or group.
    static String produce(String name, Properties properties) throws Exception {
        try (KafkaProducer<String, String> producer = producer(properties)) {
            producer.send(new ProducerRecord<>(name.split(":")[1], "value")).get();
            return "ok";
        }
    }

    static String init(String name, Properties properties) throws Exception {
        try (KafkaProducer<String, String> producer = producer(properties, "transactional.id", name.split(":")[1])) {
            producer.initTransactions();
            return "ok";
        }
    }

    // A transaction of an allowed producer, with offsets of a group that it may not touch.
    static String commit(String name, Properties properties) throws Exception {
        try (KafkaProducer<String, String> producer = producer(properties, "transactional.id", "open")) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(new TopicPartition("open", 0), new OffsetAndMetadata(1)),
                new org.apache.kafka.clients.consumer.ConsumerGroupMetadata(name.split(":")[1]));
            producer.commitTransaction();
            return "ok";
        }
    }

    static String consume(String name, Properties properties) {
        String[] parts = name.split(":");
        return "read " + (read(properties, parts[1], parts[2], parts[3], 1) > 0);
    }

    /** A token that ended long ago: a client's own login module would make no such token. */
    public static class Expired implements AuthenticateCallbackHandler {
        @Override public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) { }

        @Override public void close() { }

        @Override public void handle(Callback[] callbacks) {
            for (Callback each : callbacks) {
                if (each instanceof OAuthBearerTokenCallback) {
                    ((OAuthBearerTokenCallback) each).token(new OAuthBearerToken() {
                        @Override public String value() {
                            Base64.Encoder base = Base64.getUrlEncoder().withoutPadding();
                            return base.encodeToString("{\"alg\":\"none\"}".getBytes()) + "."
                                + base.encodeToString("{\"sub\":\"alice\",\"iat\":1000,\"exp\":2000}".getBytes()) + ".";
                        }

                        @Override public java.util.Set<String> scope() { return java.util.Set.of(); }

                        @Override public long lifetimeMs() { return System.currentTimeMillis() + 3_600_000; }

                        @Override public String principalName() { return "alice"; }

                        @Override public Long startTimeMs() { return System.currentTimeMillis(); }
                    });
                }
            }
        }
    }
}
