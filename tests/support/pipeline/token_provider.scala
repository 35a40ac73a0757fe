// What Spark's Kafka connector needs of spark-token-provider-kafka-0-10, without delegation tokens: tests run where Maven's
// mirrors lack that jar. tests/support/pipeline/connector.py compiles it with the Scala compiler that comes with PySpark.
package org.apache.spark.kafka010

import java.{util => ju}
import scala.jdk.CollectionConverters._
import org.apache.spark.SparkConf

case class KafkaTokenClusterConf(identifier: String)

class KafkaConfigUpdater(module: String, params: Map[String, Object]) {
  private val map = new ju.HashMap[String, Object](params.asJava)
  def set(key: String, value: Object): this.type = { map.put(key, value); this }
  def setIfUnset(key: String, value: Object): this.type = { map.putIfAbsent(key, value); this }
  def setAuthenticationConfigIfNeeded(): this.type = this
  def setAuthenticationConfigIfNeeded(cluster: Option[KafkaTokenClusterConf]): this.type = this
  def build(): ju.Map[String, Object] = map
}

object KafkaRedactionUtil {
  def redactParams(params: Seq[(String, Object)]): Seq[(String, String)] =
    params.map { case (key, value) => (key, String.valueOf(value)) }
}

object KafkaTokenUtil {
  def findMatchingTokenClusterConfig(conf: SparkConf, servers: String): Option[KafkaTokenClusterConf] = None
  def needTokenUpdate(params: ju.Map[String, Object], cluster: Option[KafkaTokenClusterConf]): Boolean = false
}
