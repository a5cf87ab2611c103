package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	maxStarts = 20               // starts whose files are kept
	maxFile   = 2 * journalBytes // bytes of a file, after which it is rewritten with the entries in memory
)

// startName matches the name of the file of one start: its time and boot id.
var startName = regexp.MustCompile(`^([0-9]{8}T[0-9]{6}\.[0-9]{3})-([a-z2-7]{16})\.jsonl$`)

const startStamp = "20060102T150405.000"

// hostStart is one start of a host, from the name of its file.
type hostStart struct {
	boot string
	at   time.Time
	path string
}

// line is the JSON of one message in a file.
type line struct {
	Seq     uint64          `json:"seq"`
	At      time.Time       `json:"at"`
	Level   string          `json:"level"`
	Message string          `json:"message"`
	Attrs   json.RawMessage `json:"attrs,omitempty"`
}

// OpenFile makes a file in a folder and writes the entries of the journal to it, so
// that they can be read after this host has ended. It removes the files of the
// oldest starts. If the folder cannot be written, OpenFile returns an error and
// the journal stays in memory.
func (j *Journal) OpenFile(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	old, err := starts(folder)
	if err != nil {
		return err
	}
	for _, s := range old[min(maxStarts-1, len(old)):] {
		os.Remove(s.path) // fails if another host has removed it
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.folder = folder
	path := filepath.Join(folder, time.Now().UTC().Format(startStamp)+"-"+j.boot+".jsonl")
	if j.file, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return err
	}
	for i := range j.entries {
		j.writeEntry(&j.entries[i])
	}
	return nil
}

// CloseFile closes the file. Later entries are in memory only.
func (j *Journal) CloseFile() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	return err
}

// writeEntry writes one entry. j.mu is held. If the write fails, as on a full disk, the
// journal stops writing the file, because it cannot log its own failure.
func (j *Journal) writeEntry(e *entry) {
	if j.file == nil {
		return
	}
	b, err := json.Marshal(line{e.seq, e.at, e.level, e.message, e.attrs})
	if err != nil {
		return
	}
	if j.written+int64(len(b)) > maxFile {
		j.written = 0
		if err = j.file.Truncate(0); err == nil {
			for i := range j.entries {
				if j.entries[i].seq != e.seq {
					j.writeEntry(&j.entries[i])
				}
			}
		}
	}
	n := 0
	if err == nil && j.file != nil {
		n, err = j.file.Write(append(b, '\n'))
	}
	j.written += int64(n)
	if err != nil && j.file != nil {
		j.file.Close()
		j.file = nil
	}
}

// starts returns the starts whose files are in a folder, newest first.
func starts(folder string) ([]hostStart, error) {
	if folder == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []hostStart
	for _, e := range entries {
		m := startName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if at, err := time.Parse(startStamp, m[1]); err == nil {
			all = append(all, hostStart{m[2], at, filepath.Join(folder, e.Name())})
		}
	}
	slices.SortFunc(all, func(a, b hostStart) int {
		if c := b.at.Compare(a.at); c != 0 {
			return c
		}
		return strings.Compare(a.boot, b.boot)
	})
	return all, nil
}

// readEntries reads the messages of a start. It skips an incomplete line, which a
// host leaves if it is killed.
func (s *hostStart) readEntries() ([]entry, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []entry
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4*maxMessage+(1<<10)*64)
	for lines.Scan() {
		var l line
		if json.Unmarshal(lines.Bytes(), &l) != nil || len(all) > 0 && l.Seq <= all[len(all)-1].seq {
			continue
		}
		all = append(all, entry{l.Seq, l.At, l.Level, l.Message, l.Attrs})
	}
	return all, lines.Err()
}
