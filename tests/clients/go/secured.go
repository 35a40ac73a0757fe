// Secured logs in, writes a transaction and reads it in a group, with franz-go: a line of JSON of input gives a line of output.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type cell struct {
	Name, Topic, Address, Authority, Certificate, Key, Mechanism, User, Password string
}

func (c cell) options() ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(c.Address), kgo.AllowAutoTopicCreation()}
	if c.Authority != "" {
		pem, err := os.ReadFile(c.Authority)
		if err != nil {
			return nil, err
		}
		config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		config.RootCAs.AppendCertsFromPEM(pem)
		if c.Certificate != "" {
			own, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{own}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	switch c.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: c.User, Pass: c.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: c.User, Pass: c.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: c.User, Pass: c.Password}.AsSha512Mechanism()))
	}
	return options, nil
}

func (c cell) round(ctx context.Context) error {
	options, err := c.options()
	if err != nil {
		return err
	}
	producer, err := kgo.NewClient(append(options, kgo.TransactionalID(c.Topic), kgo.DefaultProduceTopic(c.Topic))...)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := producer.BeginTransaction(); err != nil {
		return err
	}
	if err := producer.ProduceSync(ctx, kgo.StringRecord("value")).FirstErr(); err != nil {
		return err
	}
	if err := producer.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	consumer, err := kgo.NewClient(append(options,
		kgo.ConsumerGroup(c.Topic), kgo.ConsumeTopics(c.Topic), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return err
	}
	defer consumer.Close()
	for {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		if fetches.NumRecords() > 0 {
			return consumer.CommitRecords(ctx, fetches.Records()...)
		}
	}
}

func main() {
	var group sync.WaitGroup
	answers := make(chan string, 100)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var each cell
		if err := json.Unmarshal(lines.Bytes(), &each); err != nil {
			panic(err)
		}
		group.Add(1)
		go func() {
			defer group.Done()
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			if err := each.round(ctx); err != nil {
				answers <- fmt.Sprintf("%s: %v", each.Name, err)
			} else {
				answers <- each.Name + ": ok"
			}
		}()
	}
	group.Wait()
	close(answers)
	for each := range answers {
		fmt.Println(each)
	}
}
