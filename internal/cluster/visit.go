package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Visit sends a request to the node whose folder is dir, or to any if that does not answer it, by way of the engine of
// the former; see Visitor.
func Visit(ctx context.Context, dir, topic string, data []byte) ([]byte, error) {
	n, err := Visitor(dir)
	if err != nil {
		return nil, err
	}
	defer n.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if id, err := IDOf(dir); err == nil {
		raw, err := n.Request(ctx, id, topic, data)
		if !errors.Is(err, ErrNotRun) {
			return raw, err
		}
	}
	return n.RequestAny(ctx, topic, data)
}

// Visitor connects a command to the cluster, by way of the engine of the node whose folder is dir: an embedded one must
// run on this machine. A visitor is no member: it has records and sends requests, and nothing else of a Node.
func Visitor(dir string) (*Node, error) {
	name, x, err := readExternal(dir)
	if err != nil {
		return nil, err
	}
	if x != nil {
		conn, err := nats.Connect(x.Address, append(x.options(), nats.MaxReconnects(0))...)
		if err != nil {
			return nil, fmt.Errorf("the NATS server of cluster %s does not answer: %w", name, err)
		}
		return visitor(conn, name, cmp.Or(x.Replicas, MinNodes))
	}
	raw, err := os.ReadFile(filepath.Join(dir, "nats.json"))
	if err != nil {
		return nil, fmt.Errorf("there is no node in this data folder: %w", err)
	}
	var config struct {
		Port          int
		Authorization struct {
			Users []struct{ User, Password string }
		}
		Cluster struct{ Name string }
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, err
	}
	if len(config.Authorization.Users) == 0 {
		return nil, errors.New("the node of this machine is of an older version: restart it")
	}
	as := config.Authorization.Users[0]
	conn, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", config.Port),
		nats.UserInfo(as.User, as.Password), nats.MaxReconnects(0))
	if err != nil {
		return nil, fmt.Errorf("the node of cluster %s does not run: %w", config.Cluster.Name, err)
	}
	return visitor(conn, config.Cluster.Name, MinNodes)
}

func visitor(conn *nats.Conn, cluster string, replicas int) (*Node, error) {
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(requestTime))
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Node{
		opts: Options{Name: cluster, Start: visitTime}, conn: conn, js: js, replicas: replicas,
		buckets: map[string]*Bucket{}, log: slog.New(slog.DiscardHandler),
	}, nil
}

// Running reports whether the node whose folder is dir runs.
func Running(ctx context.Context, dir string) bool {
	id, err := IDOf(dir)
	if err != nil {
		return false
	}
	n, err := Visitor(dir)
	if err != nil {
		return false
	}
	defer n.Close()
	ctx, cancel := context.WithTimeout(ctx, visitTime)
	defer cancel()
	_, err = n.Request(ctx, id, hearsTopic, []byte(id))
	return !errors.Is(err, ErrNotRun)
}

// waitsTopic is the topic of the question what a node waits for that has not started yet.
const waitsTopic = "waits"

func (n *Node) answerWaits() error {
	_, err := n.Handle(waitsTopic, func(context.Context, string, []byte) ([]byte, error) {
		if why := n.waits.Load(); why != nil {
			return []byte(*why), nil
		}
		return []byte("it has just been started"), nil
	})
	return err
}

// Waits returns what the node waits for whose folder is dir, and which runs and does not serve yet.
func Waits(ctx context.Context, dir string) (string, error) {
	id, err := IDOf(dir)
	if err != nil {
		return "", err
	}
	n, err := Visitor(dir)
	if err != nil {
		return "", err
	}
	defer n.Close()
	ctx, cancel := context.WithTimeout(ctx, visitTime)
	defer cancel()
	raw, err := n.Request(ctx, id, waitsTopic, nil)
	return string(raw), err
}

// visitTime is how long a command waits for the records of the cluster.
const visitTime = 15 * time.Second
