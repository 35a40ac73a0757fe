// Logs in, writes a transaction and reads it in a group, with kafkajs: a line of JSON of input gives a line of output.
import { readFileSync } from 'node:fs'
import { Kafka, logLevel } from 'kafkajs'

async function round(cell) {
  const kafka = new Kafka({
    brokers: [cell.Address],
    logLevel: logLevel.NOTHING,
    ssl: cell.Authority && {
      ca: readFileSync(cell.Authority),
      ...(cell.Certificate && { cert: readFileSync(cell.Certificate), key: readFileSync(cell.Key) }),
    },
    sasl: cell.Mechanism && { mechanism: cell.Mechanism.toLowerCase(), username: cell.User, password: cell.Password },
  })
  const producer = kafka.producer({ transactionalId: cell.Topic, idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const transaction = await producer.transaction()
  await transaction.send({ topic: cell.Topic, messages: [{ value: 'value' }] })
  await transaction.commit()
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: cell.Topic })
  await consumer.connect()
  await consumer.subscribe({ topic: cell.Topic, fromBeginning: true })
  await new Promise((found) => consumer.run({ eachMessage: async () => found() }))
  await consumer.disconnect()
}

const lines = readFileSync(process.env.CELLS, 'utf8').trim().split('\n')
const answers = await Promise.all(lines.map(JSON.parse).map((cell) =>
  round(cell).then(() => `${cell.Name}: ok`, (error) => `${cell.Name}: ${error.message}`)))
console.log(answers.join('\n'))
process.exit(0)
