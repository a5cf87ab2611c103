package protocol_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
)

var update = flag.Bool("update", false, "write what the host says into the transcripts")

// The transcripts in testdata are conversations on one pipe, a line each:
//
//	-> frame     what the client sends
//	.. 50ms      time that passes
//	!! tick      a waiting handler continues
//	!! touch URI a resource changes
//	!! grow      a tool is added
//	!! shrink    the tool is removed
//	!! end       the client closes its end
//	<- frame     what the host answers, compared as JSON by value
//	<~ frame     the same, on a separate stream: it may arrive earlier or later
//	<? frame     the same, or nothing
//	# remark
//
// In messages of the host, "$name" stands for any value, which is stored under that name and can be
// used in later frames, on either side. "$*" in a text stands for any part of it. Each file has a host
// of its own.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("there are no transcripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			o := hosttest.Options{
				JobTools: true,
				Promote:  5 * time.Second,
				Silence:  20 * time.Second,
				AskFor:   time.Minute,
				Page:     50,
			}
			visit(t, o, func(t *testing.T, h *testHost) {
				tr := transcript{t: t, h: h, peer: h.dial(t), names: map[string]string{}}
				tr.play(file)
			})
		})
	}
}

type transcript struct {
	t     *testing.T
	h     *testHost
	peer  *peer
	names map[string]string
	out   bytes.Buffer
}

// hearing is an expected line of the host.
type hearing struct {
	line       int
	verb, want string
	heard      bool
}

func (tr *transcript) play(file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		tr.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for n := 0; n < len(lines); {
		verb, rest, _ := strings.Cut(lines[n], " ")
		tr.out.WriteString(lines[n] + "\n")
		n++
		if verb == "" || verb == "#" {
			continue
		}
		tr.do(n, verb, rest)
		var want []*hearing
		for ; n < len(lines) && strings.HasPrefix(lines[n], "<"); n++ {
			verb, frame, _ := strings.Cut(lines[n], " ")
			want = append(want, &hearing{n + 1, verb, frame, false})
		}
		tr.compare(n, want, tr.peer.rest())
	}
	if *update {
		if err := os.WriteFile(file, tr.out.Bytes(), 0o644); err != nil {
			tr.t.Fatal(err)
		}
	}
}

// compare compares received frames with the expected ones.
func (tr *transcript) compare(n int, want []*hearing, said []string) {
	for _, got := range said {
		if h := tr.find(want, got); h != nil {
			h.heard = true
			if *update {
				tr.out.WriteString(h.verb + " " + h.want + "\n")
			}
			continue
		}
		tr.write(got)
		if !*update {
			tr.t.Errorf("line %d: unexpected %s", n, got)
		}
	}
	for _, h := range want {
		switch {
		case h.verb == "<?" && *update && !h.heard:
			tr.out.WriteString(h.verb + " " + h.want + "\n")
		case h.verb != "<?" && !h.heard && !*update:
			tr.t.Errorf("line %d: not heard: %s", h.line, h.want)
		}
	}
}

// find returns the expected line that a frame matches: the first in order, or one outside the order.
func (tr *transcript) find(want []*hearing, got string) *hearing {
	first := true
	for _, h := range want {
		if h.heard || h.verb == "<-" && !first {
			continue
		}
		if tr.matches(h.want, got) {
			return h
		}
		first = first && h.verb != "<-"
	}
	return nil
}

func (tr *transcript) do(n int, verb, rest string) {
	switch {
	case verb == "->":
		for name, value := range tr.names {
			rest = strings.ReplaceAll(rest, `"$`+name+`"`, value)
		}
		var hello struct {
			Method string
			Params struct{ ProtocolVersion string }
		}
		if json.Unmarshal([]byte(rest), &hello) == nil && hello.Method == "initialize" {
			tr.peer.rev = hello.Params.ProtocolVersion
		}
		tr.peer.send(rest)
	case verb == "..":
		d, err := time.ParseDuration(rest)
		if err != nil {
			tr.t.Fatalf("line %d: %v", n, err)
		}
		time.Sleep(d)
	case verb == "!!":
		tr.act(n, rest)
	default:
		tr.t.Fatalf("line %d: %s begins nothing that can be done", n, verb)
	}
}

func (tr *transcript) act(n int, what string) {
	what, arg, _ := strings.Cut(what, " ")
	switch what {
	case "tick":
		tr.h.clock <- struct{}{}
	case "touch":
		tr.h.touch(arg)
	case "grow":
		tr.h.offer(newcomer)
	case "shrink":
		tr.h.offer()
	case "end":
		tr.peer.pipe.Drain(tr.t.Context())
	default:
		tr.t.Fatalf("line %d: unknown action %s", n, what)
	}
}

// volatile matches values that differ in every run.
var volatile = regexp.MustCompile(`"(requestState|taskId|gatehouse/job)":"([^"]+)"`)

// write adds a frame of the host to the new transcript, with names for volatile values: state1, task1,
// job1 and so on.
func (tr *transcript) write(got string) {
	for _, m := range volatile.FindAllStringSubmatch(got, -1) {
		kind := map[string]string{"requestState": "state", "taskId": "task", "gatehouse/job": "job"}[m[1]]
		if slices.Contains(slices.Collect(maps.Values(tr.names)), `"`+m[2]+`"`) {
			continue
		}
		n := 1
		for tr.names[kind+strconv.Itoa(n)] != "" {
			n++
		}
		tr.names[kind+strconv.Itoa(n)] = `"` + m[2] + `"`
	}
	for name, raw := range tr.names {
		got = strings.ReplaceAll(got, raw, `"$`+name+`"`)
		got = strings.ReplaceAll(got, strings.Trim(raw, `"`), "$*")
	}
	tr.out.WriteString("<- " + got + "\n")
}

func (tr *transcript) matches(want, got string) bool {
	w, err := value(want)
	if err != nil {
		return false
	}
	g, err := value(got)
	return err == nil && tr.match(w, g)
}

// value decodes JSON; numbers stay text, so that large ones keep all digits.
func value(text string) (v any, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

func (tr *transcript) match(want, got any) bool {
	switch w := want.(type) {
	case string:
		return tr.matchText(w, got)
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for k, v := range w {
			gv, there := g[k]
			if !there || !tr.match(v, gv) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range w {
			if !tr.match(w[i], g[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(want, got)
}

func (tr *transcript) matchText(want string, got any) bool {
	g, isText := got.(string)
	if name, ok := strings.CutPrefix(want, "$"); ok && !strings.HasPrefix(want, "$*") {
		raw, _ := json.Marshal(got)
		if known, ok := tr.names[name]; ok {
			return known == string(raw)
		}
		tr.names[name] = string(raw)
		return true
	}
	if !isText {
		return false
	}
	parts := strings.Split(want, "$*")
	for i, part := range parts {
		at := strings.Index(g, part)
		if at < 0 || i == 0 && at > 0 {
			return false
		}
		g = g[at+len(part):]
	}
	return g == "" || len(parts) > 1 && strings.HasSuffix(want, "$*")
}
