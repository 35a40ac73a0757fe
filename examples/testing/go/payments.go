// Package payments writes payments to Kafka: all of a batch, or none, in one transaction.
package payments

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Payment is one record of the topic.
type Payment struct {
	Account string
	Amount  string
}

// Ledger writes batches of payments. One process at a time has a ledger's name: an older one is fenced.
type Ledger struct {
	client *kgo.Client
	topic  string
}

// NewLedger connects to Kafka. The name is the transactional id.
func NewLedger(brokers []string, name, topic string) (*Ledger, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ClientID("payments"),
		kgo.TransactionalID(name),
		kgo.DefaultProduceTopic(topic),
	)
	if err != nil {
		return nil, fmt.Errorf("ledger %s: %w", name, err)
	}
	return &Ledger{client, topic}, nil
}

// Pay writes the payments in one transaction. After an error none of them counts.
func (l *Ledger) Pay(ctx context.Context, batch []Payment) error {
	if err := l.client.BeginTransaction(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	records := make([]*kgo.Record, 0, len(batch))
	for _, each := range batch {
		records = append(records, &kgo.Record{Key: []byte(each.Account), Value: []byte(each.Amount)})
	}
	if err := l.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		if aborted := l.client.EndTransaction(ctx, kgo.TryAbort); aborted != nil {
			return fmt.Errorf("%w; and the abort: %w", err, aborted)
		}
		return fmt.Errorf("write: %w", err)
	}
	if err := l.client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Close ends the connection.
func (l *Ledger) Close() {
	l.client.Close()
}
