package payments

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const deadline = 60 * time.Second

// Lab is a Kafka for one test; it sets faults over HTTP. docs/testing/faults.md has the requests.
type Lab struct {
	Brokers []string
	url     string
	t       *testing.T
	http    http.Client
}

// Fault is what the lab tells about a fault.
type Fault struct {
	ID       int              `json:"id"`
	Hits     int              `json:"hits"`
	Requests []map[string]any `json:"requests"`
}

// StartLab starts brokers and ends them with the test. A fault that has met no request fails the test.
func StartLab(t *testing.T, brokers int, settings ...string) *Lab {
	t.Helper()
	command := strings.Fields(os.Getenv("BARNABAS")) // for example "python -m barnabas"
	if len(command) == 0 {
		command = []string{"barnabas"}
	}
	command = append(command, "up", "--brokers", fmt.Sprint(brokers), "--port", "0", "--lab", "127.0.0.1:0")
	for _, each := range settings {
		command = append(command, "--set", each)
	}
	process := exec.Command(command[0], command[1:]...)
	process.Stderr = os.Stderr
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(deadline, func() { process.Process.Kill() })
		defer timer.Stop()
		if err := process.Wait(); err != nil {
			t.Errorf("the lab: %v", err)
		}
	})
	line, _ := bufio.NewReader(output).ReadString('\n')
	fields := strings.Fields(line) // ready bootstrap=… lab=…
	if len(fields) != 3 || fields[0] != "ready" {
		t.Fatalf("the lab did not start: %q", line)
	}
	lab := &Lab{
		Brokers: strings.Split(strings.TrimPrefix(fields[1], "bootstrap="), ","),
		url:     strings.TrimPrefix(fields[2], "lab="),
		t:       t,
		http:    http.Client{Timeout: deadline},
	}
	t.Cleanup(func() {
		if !t.Failed() {
			lab.call("POST", "/v1/faults/verify", nil, nil)
		}
	})
	return lab
}

// Fault installs a fault and returns its number.
func (l *Lab) Fault(fault map[string]any) int {
	l.t.Helper()
	var made Fault
	l.call("POST", "/v1/faults", fault, &made)
	return made.ID
}

// Wait returns the fault once it has met that many requests.
func (l *Lab) Wait(id, hits int) Fault {
	l.t.Helper()
	var found Fault
	l.call("GET", fmt.Sprintf("/v1/faults/%d?hits=%d&timeout=30", id, hits), nil, &found)
	return found
}

// Release lets the requests go on that the fault holds.
func (l *Lab) Release(id int) {
	l.t.Helper()
	l.call("POST", fmt.Sprintf("/v1/faults/%d/release", id), nil, nil)
}

// Leader returns the broker that leads a partition.
func (l *Lab) Leader(topic string, partition int) int {
	l.t.Helper()
	var found struct{ Leader int }
	l.call("GET", fmt.Sprintf("/v1/leaders?topic=%s&partition=%d", topic, partition), nil, &found)
	return found.Leader
}

// MoveLeader makes another broker the leader of a partition and returns it.
func (l *Lab) MoveLeader(topic string, partition int) int {
	l.t.Helper()
	var found struct{ Leader int }
	l.call("POST", "/v1/leaders", map[string]any{"topic": topic, "partition": partition}, &found)
	return found.Leader
}

// Broker does something to a broker: kill, stop, pause, resume, restart.
func (l *Lab) Broker(id int, action string) {
	l.t.Helper()
	l.call("POST", fmt.Sprintf("/v1/brokers/%d/%s", id, action), nil, nil)
}

func (l *Lab) call(method, path string, body, into any) {
	l.t.Helper()
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			l.t.Fatal(err)
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, l.url+path, sent)
	if err != nil {
		l.t.Fatal(err)
	}
	answer, err := l.http.Do(request)
	if err != nil {
		l.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	if answer.StatusCode >= 300 {
		l.t.Fatalf("%s %s: %d %s", method, path, answer.StatusCode, text)
	}
	if into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			l.t.Fatal(err)
		}
	}
}
