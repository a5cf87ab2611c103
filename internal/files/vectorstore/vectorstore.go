// Package vectorstore keeps the vectors of collections in a server: Qdrant, or PostgreSQL with pgvector.
//
// A Store has numbers and vectors and nothing else: no text and no path leaves the host.
package vectorstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"

	"gatehouse/internal/access/secret"
)

// Store keeps vectors of length 1 by the collection and a number. It is safe for concurrent use. A collection that does
// not exist is empty.
type Store interface {
	// Name says what kind of store it is.
	Name() string
	// Put stores vectors of one length, and replaces those with the same numbers. It creates the collection.
	Put(ctx context.Context, collection string, ids []int64, vecs [][]float32) error
	// Delete removes vectors. Those that do not exist are ignored.
	Delete(ctx context.Context, collection string, ids []int64) error
	// Nearest returns the numbers of at most n vectors with the largest cosines, and these, the largest first. If among
	// is not nil, it chooses from these numbers alone.
	Nearest(ctx context.Context, collection string, query []float32, n int, among []int64) ([]int64, []float32, error)
	// Drop removes a collection.
	Drop(ctx context.Context, collection string) error
	Close() error
}

// Kinds of stores.
const (
	Qdrant   = "qdrant"
	Postgres = "postgres"
)

// Settings choose the store of a host. The zero value means that vectors are kept with the texts.
type Settings struct {
	Kind string `doc:"Where the vectors of an embedder are kept: qdrant, or postgres (PostgreSQL with the extension vector). Left out, in index.db with the texts." enum:"qdrant,postgres"`
	URL  string `yaml:"url" doc:"Address of the server, such as http://127.0.0.1:6333 or postgres://user@127.0.0.1/db?sslmode=disable."`
	Key  string `doc:"API key of Qdrant, or password of PostgreSQL, best as a reference: ${secret:NAME}."`
}

// Validate returns what is wrong with the settings.
func (s Settings) Validate() error {
	if s.Kind == "" {
		return nil
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Host == "" {
		return errors.New("url: expected the address of the server") // it may contain a password
	}
	if _, has := u.User.Password(); has {
		return errors.New("url: it has a password; expected it as key")
	}
	plain := false
	switch s.Kind {
	case Qdrant:
		if u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
			return fmt.Errorf("url %q: expected http://host or https://host", s.URL)
		}
		plain = u.Scheme == "http"
	case Postgres:
		if u.Scheme != "postgres" && u.Scheme != "postgresql" || len(u.Path) < 2 || u.User.Username() == "" {
			return fmt.Errorf("url %q: expected postgres://user@host/database", s.URL)
		}
		mode := u.Query().Get("sslmode")
		plain = mode == "disable" || mode == "allow" || mode == "prefer"
	default:
		return fmt.Errorf("kind %q: expected qdrant or postgres", s.Kind)
	}
	if ip := net.ParseIP(u.Hostname()); plain && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return errors.New("url: the vectors would be sent to another machine without encryption")
	}
	_, err = secret.Names(s.Key)
	return err
}

// New returns the store of settings that are valid, nil if they choose none. It connects at the first use. fill replaces
// references to secrets; nil means that there are no secrets.
func New(s Settings, fill func(map[string]string) (map[string]secret.Text, error)) Store {
	key := func() (string, error) {
		names, err := secret.Names(s.Key)
		switch {
		case err != nil || len(names) == 0:
			return s.Key, err
		case fill == nil:
			return "", errors.New("key: this host has no store of secrets")
		}
		filled, err := fill(map[string]string{"key": s.Key})
		if err != nil {
			return "", err
		}
		return filled["key"].Reveal(), nil
	}
	switch s.Kind {
	case Qdrant:
		return newQdrant(s.URL, key)
	case Postgres:
		return &postgres{url: s.URL, key: key, made: map[string]bool{}}
	}
	return nil
}

// names are the names of collections, which become parts of addresses and statements.
var names = regexp.MustCompile(`^[a-z0-9_]{1,40}$`)

func checkName(collection string) (string, error) {
	if !names.MatchString(collection) {
		return "", fmt.Errorf("the name %q of a collection is not possible", collection)
	}
	return "gatehouse_" + collection, nil
}
