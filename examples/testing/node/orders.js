// A shop that writes its orders to Kafka, and a stock keeper that reads them.

import { Kafka, logLevel } from "kafkajs";

export function connect(brokers, clientId) {
  return new Kafka({ brokers, clientId, logLevel: logLevel.NOTHING, retry: { initialRetryTime: 50, retries: 10 } });
}

/** Writes orders; an order that was written counts once, also if the producer had to send it again. */
export class Shop {
  constructor(kafka) {
    this.producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  }

  async open() {
    await this.producer.connect();
  }

  async order(article, count) {
    await this.producer.send({ topic: "orders", acks: -1, messages: [{ key: article, value: String(count) }] });
  }

  async close() {
    await this.producer.disconnect();
  }
}

/** Adds up what was ordered of each article. */
export class Stock {
  constructor(kafka, groupId) {
    this.consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 100 });
    this.ordered = new Map();
    this.changed = () => {};
  }

  async open() {
    await this.consumer.connect();
    await this.consumer.subscribe({ topic: "orders", fromBeginning: true });
    await this.consumer.run({
      eachMessage: async ({ message }) => {
        const article = message.key.toString();
        this.ordered.set(article, (this.ordered.get(article) ?? 0) + Number(message.value));
        this.changed();
      },
    });
  }

  /** Returns once the condition holds. */
  async until(condition) {
    while (!condition(this.ordered)) {
      await new Promise((resolve) => {
        this.changed = resolve;
      });
    }
  }

  async close() {
    await this.consumer.disconnect();
  }
}
