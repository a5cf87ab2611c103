package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/displaytext"
)

const (
	journalEntries = 4000
	journalBytes   = 4 << 20
	maxMessage     = 8 << 10 // bytes of one message, and as many of its attributes
)

// A Journal keeps the newest log messages in memory and, after OpenFile, also in a
// file. Its Handler is a slog.Handler. It is safe for concurrent use; make one
// with NewJournal.
type Journal struct {
	boot  string
	level slog.Leveler

	mu      sync.Mutex
	entries []entry
	first   uint64 // sequence number of entries[0]; the first of all is 1
	bytes   int
	current *entry        // the entry that the handler is writing
	changed chan struct{} // closed when an entry is added

	folder  string   // of the files of all starts; "" if no file is written
	file    *os.File // of this start; nil if no file is written
	written int64    // bytes in file
}

// entry is one log message.
type entry struct {
	seq     uint64
	at      time.Time
	level   string
	message string
	attrs   json.RawMessage // a JSON object, or nil
}

func (e *entry) entrySize() int { return len(e.message) + len(e.attrs) + 64 }

// NewJournal returns a journal of messages at a level and above.
func NewJournal(level slog.Leveler) *Journal {
	return &Journal{boot: strings.ToLower(rand.Text()[:16]), level: level, first: 1, changed: make(chan struct{})}
}

// Handler returns the handler for loggers.
func (j *Journal) Handler() slog.Handler {
	return journalHandler{j, slog.NewJSONHandler(journalWriter{j}, &slog.HandlerOptions{
		Level: j.level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
				return slog.Attr{} // an entry has them beside the attributes
			}
			return a
		},
	})}
}

// journalHandler lets the handler of package slog format the attributes of a
// record, and adds the time, level and message.
type journalHandler struct {
	journal *Journal
	slog.Handler
}

func (h journalHandler) Handle(ctx context.Context, r slog.Record) error {
	j := h.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	j.current = &entry{at: r.Time, level: strings.ToLower(r.Level.String()), message: cut(r.Message)}
	return h.Handler.Handle(ctx, r)
}

func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return journalHandler{h.journal, h.Handler.WithAttrs(attrs)}
}

func (h journalHandler) WithGroup(name string) slog.Handler {
	return journalHandler{h.journal, h.Handler.WithGroup(name)}
}

// journalWriter gets the formatted line of the record that is being handled.
type journalWriter struct{ journal *Journal }

var _ io.Writer = journalWriter{}

func (w journalWriter) Write(line []byte) (int, error) {
	j := w.journal
	e := j.current
	switch attrs := strings.TrimSpace(string(line)); {
	case attrs == "{}":
	case len(attrs) > maxMessage:
		e.attrs, _ = json.Marshal(map[string]string{"cut": displaytext.Cut(attrs, maxMessage, "")})
	default:
		e.attrs = json.RawMessage(attrs)
	}
	j.addEntry(e)
	return len(line), nil
}

func cut(s string) string { return displaytext.Cut(s, maxMessage, " [...]") }

// addEntry adds an entry and drops the oldest ones beyond the limits. j.mu is held.
func (j *Journal) addEntry(e *entry) {
	e.seq = j.first + uint64(len(j.entries))
	j.entries = append(j.entries, *e)
	j.bytes += e.entrySize()
	drop := 0
	for len(j.entries)-drop > journalEntries || j.bytes > journalBytes {
		j.bytes -= j.entries[drop].entrySize()
		drop++
	}
	j.entries, j.first = j.entries[drop:], j.first+uint64(drop) // a new slice, because readers may use the old one
	j.writeEntry(e)
	close(j.changed)
	j.changed = make(chan struct{})
}

// snapshot returns the present entries, and a channel that is closed when one is
// added.
func (j *Journal) snapshot() (boot string, all []entry, more <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.boot, j.entries[:len(j.entries):len(j.entries)], j.changed
}
