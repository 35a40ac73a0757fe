package payments

import (
	"context"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

var batch = []Payment{{"anna", "10 EUR"}, {"ben", "20 EUR"}}

func newLedger(t *testing.T, lab *Lab) *Ledger {
	t.Helper()
	ledger, err := NewLedger(lab.Brokers, "ledger-1", "payments")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ledger.Close)
	return ledger
}

// committed returns the payments that a reader of committed records sees, in order; it reads until it has the marker.
func committed(t *testing.T, ctx context.Context, lab *Lab, marker Payment) []Payment {
	t.Helper()
	reader, err := kgo.NewClient(
		kgo.SeedBrokers(lab.Brokers...),
		kgo.ClientID("reader"),
		kgo.ConsumeTopics("payments"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var found []Payment
	for {
		fetches := reader.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("only %v came: %v", found, err)
		}
		for _, each := range fetches.Records() {
			payment := Payment{string(each.Key), string(each.Value)}
			if payment == marker {
				return found
			}
			found = append(found, payment)
		}
	}
}

func pay(t *testing.T, ctx context.Context, ledger *Ledger, batch []Payment) {
	t.Helper()
	if err := ledger.Pay(ctx, batch); err != nil {
		t.Fatal(err)
	}
}

func setUp(t *testing.T, brokers int, settings ...string) (context.Context, *Lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	lab := StartLab(t, brokers, settings...)
	admin, err := kgo.NewClient(kgo.SeedBrokers(lab.Brokers...), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.ProduceSync(ctx, &kgo.Record{Topic: "payments", Key: []byte("first")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return ctx, lab
}

var first, last = Payment{"first", ""}, Payment{"last", ""}

func expect(t *testing.T, ctx context.Context, lab *Lab, ledger *Ledger, expected []Payment) {
	t.Helper()
	pay(t, ctx, ledger, []Payment{last})
	if found := committed(t, ctx, lab, last); !slices.Equal(found, append([]Payment{first}, expected...)) {
		t.Fatalf("the ledger has %v", found)
	}
}

func TestACommitWhoseAnswerIsLostCountsOnce(t *testing.T) {
	ctx, lab := setUp(t, 1)
	lost := lab.Fault(map[string]any{"api": "EndTxn", "txn": "ledger-*", "disconnect": "applied"})
	ledger := newLedger(t, lab)
	pay(t, ctx, ledger, batch)
	if fault := lab.Wait(lost, 1); fault.Requests[0]["client"] != "payments" {
		t.Fatalf("%v", fault)
	}
	expect(t, ctx, lab, ledger, batch)
}

func TestABatchThatIsRefusedCountsNotAtAll(t *testing.T) {
	ctx, lab := setUp(t, 1)
	refused := lab.Fault(map[string]any{"api": "Produce", "client": "payments", "error": "TOPIC_AUTHORIZATION_FAILED"})
	ledger := newLedger(t, lab)
	if err := ledger.Pay(ctx, batch); err == nil {
		t.Fatal("the refusal is not reported")
	}
	lab.Wait(refused, 1)
	expect(t, ctx, lab, ledger, nil)
}

func TestTheLeaderMovesBetweenTwoBatches(t *testing.T) {
	ctx, lab := setUp(t, 2)
	ledger := newLedger(t, lab)
	pay(t, ctx, ledger, batch)
	if before, after := lab.Leader("payments", 0), lab.MoveLeader("payments", 0); before == after {
		t.Fatalf("broker %d leads still", after)
	}
	pay(t, ctx, ledger, batch)
	expect(t, ctx, lab, ledger, slices.Concat(batch, batch))
}
