import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";

import { Shop, Stock, connect } from "./orders.js";
import { Lab } from "./lab.js";

const options = { timeout: 60_000 };
let lab, shop, stock;

before(async () => {
  lab = await Lab.start(1);
}, options);

after(async () => {
  await lab.close();
}, options);

async function open(name) {
  const admin = connect(lab.brokers, "admin").admin();
  await admin.connect();
  await admin.deleteTopics({ topics: await admin.listTopics() });
  await admin.createTopics({ topics: [{ topic: "orders", numPartitions: 1 }], waitForLeaders: true });
  await admin.disconnect();
  shop = new Shop(connect(lab.brokers, "shop"));
  stock = new Stock(connect(lab.brokers, "stock"), `stock-${name}`);
  await shop.open();
  await stock.open();
}

afterEach(async () => {
  await shop.close();
  await stock.close();
  await lab.verify();
  await lab.call("DELETE", "/v1/faults");
}, options);

test("an order whose acknowledgement is lost counts once", options, async () => {
  await open("lost");
  const lost = await lab.fault({ api: "Produce", client: "shop", topic: "orders", disconnect: "applied" });
  await shop.order("tea", 3);
  assert.equal((await lab.wait(lost)).requests[0].client, "shop");
  await shop.order("end", 1);
  await stock.until((ordered) => ordered.has("end"));
  assert.equal(stock.ordered.get("tea"), 3);
});

test("an order is not confirmed before Kafka has it", options, async () => {
  await open("held");
  const held = await lab.fault({ api: "Produce", client: "shop", hold: true });
  let confirmed = false;
  const order = shop.order("tea", 3).then(() => {
    confirmed = true;
  });
  await lab.wait(held);
  assert.equal(confirmed, false);
  assert.equal(stock.ordered.size, 0);
  await lab.release(held);
  await order;
  await stock.until((ordered) => ordered.get("tea") === 3);
});

test("a stock keeper whose fetches fail misses no order", options, async () => {
  await open("fetches");
  const failing = await lab.fault({ api: "Fetch", client: "stock", times: 2, disconnect: "half_answered" });
  await shop.order("tea", 3);
  await lab.wait(failing, 2);
  await shop.order("tea", 4);
  await stock.until((ordered) => ordered.get("tea") === 7);
});
