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
	mostMessage    = 8 << 10 // bytes of one message, and of its attributes
)

// A Journal keeps the newest of what is logged, in memory and, after Keep, in a
// file too, as a slog.Handler.
// NewJournal makes one. Safe for concurrent use.
type Journal struct {
	boot  string
	level slog.Leveler

	mu      sync.Mutex
	entries []entry
	first   uint64 // sequence number of entries[0]; the first of all is 1
	bytes   int
	now     *entry        // is being written
	more    chan struct{} // closed when there is another entry

	folder  string   // of the files of all starts; "" when nothing is kept on disk
	file    *os.File // of this start; nil when it is not written
	written int64    // bytes in it
}

// entry is one message of a log.
type entry struct {
	seq     uint64
	at      time.Time
	level   string
	message string
	attrs   json.RawMessage // an object; nil when it has none
}

func (e *entry) size() int { return len(e.message) + len(e.attrs) + 64 }

// NewJournal makes a journal of what is logged at a level and above.
func NewJournal(level slog.Leveler) *Journal {
	return &Journal{boot: strings.ToLower(rand.Text()[:16]), level: level, first: 1, more: make(chan struct{})}
}

// Handler is what loggers write to.
func (j *Journal) Handler() slog.Handler {
	return journalHandler{j, slog.NewJSONHandler(journalWriter{j}, &slog.HandlerOptions{
		Level: j.level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
				return slog.Attr{} // they are kept beside the attributes
			}
			return a
		},
	})}
}

// journalHandler has the library's handler write out the attributes of each
// record, and adds the rest.
type journalHandler struct {
	journal *Journal
	slog.Handler
}

func (h journalHandler) Handle(ctx context.Context, r slog.Record) error {
	j := h.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	j.now = &entry{at: r.Time, level: strings.ToLower(r.Level.String()), message: cut(r.Message)}
	return h.Handler.Handle(ctx, r)
}

func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return journalHandler{h.journal, h.Handler.WithAttrs(attrs)}
}

func (h journalHandler) WithGroup(name string) slog.Handler {
	return journalHandler{h.journal, h.Handler.WithGroup(name)}
}

// journalWriter takes the line of the record that is being handled.
type journalWriter struct{ journal *Journal }

var _ io.Writer = journalWriter{}

func (w journalWriter) Write(line []byte) (int, error) {
	j := w.journal
	e := j.now
	switch attrs := strings.TrimSpace(string(line)); {
	case attrs == "{}":
	case len(attrs) > mostMessage:
		e.attrs, _ = json.Marshal(map[string]string{"cut": displaytext.Cut(attrs, mostMessage, "")})
	default:
		e.attrs = json.RawMessage(attrs)
	}
	j.add(e)
	return len(line), nil
}

func cut(s string) string { return displaytext.Cut(s, mostMessage, " [...]") }

// add keeps an entry and lets go of the oldest. j.mu is held.
func (j *Journal) add(e *entry) {
	e.seq = j.first + uint64(len(j.entries))
	j.entries = append(j.entries, *e)
	j.bytes += e.size()
	drop := 0
	for len(j.entries)-drop > journalEntries || j.bytes > journalBytes {
		j.bytes -= j.entries[drop].size()
		drop++
	}
	j.entries, j.first = j.entries[drop:], j.first+uint64(drop) // readers may still have the old ones
	j.write(e)
	close(j.more)
	j.more = make(chan struct{})
}

// snapshot is what there is now, and what is closed when there is more.
func (j *Journal) snapshot() (boot string, all []entry, more <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.boot, j.entries[:len(j.entries):len(j.entries)], j.more
}
