package lsp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/tool"
)

const (
	publishWait  = 20 * time.Second       // for the first diagnostics of a new content
	publishQuiet = 400 * time.Millisecond // without further ones
)

type diagnosticsIn struct {
	Path     string `json:"path" names:"path"`
	Severity string `json:"severity,omitempty" enum:"error,warning,information,hint" default:"hint" doc:"the least that is listed"`
	Cursor   string `json:"cursor,omitempty"`
}

type diagnosticsOut struct {
	pageOut
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
}

// Facts implements tool.Facter.
func (o diagnosticsOut) Facts() string {
	return tool.Facts(fmt.Sprintf("errors: %d", o.Errors), fmt.Sprintf("warnings: %d", o.Warnings)) + o.pageOut.Facts()
}

func (m *service) diagnosticsTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "lsp_diagnostics", Title: "Find errors", Effects: tool.Reads,
		Description: "Lists the errors and warnings of a file, as its language server sees it now, " +
			"with the text of each line.",
		Help: `path:line:column, the severity, the message and the line. The answer is about the content of this moment:
the call waits for the language server. Give next_cursor as cursor for the next page. file_edit with diagnostics returns
those of the edited file.`,
	}, func(ctx context.Context, c *tool.Call, in diagnosticsIn) (out diagnosticsOut, err error) {
		err = m.query(ctx, c, in.Path, func(s *server, f *file) error {
			all, err := s.diagnostics(ctx, f)
			if err != nil {
				return err
			}
			least := slices.Index(severities, in.Severity)
			r := m.reader(c)
			r.seen[f.path] = f
			var items []item
			for _, d := range all {
				switch d.Severity {
				case 1:
					out.Errors++
				case 2:
					out.Warnings++
				}
				if d.Severity <= least {
					items = append(items, r.item(place{f.path, d.Range}, s.encoding, d.word()))
				}
			}
			for i := range items {
				items[i].key += fmt.Sprintf("\x00%06d", i)
			}
			slices.SortFunc(items, func(a, b item) int { return strings.Compare(a.key, b.key) })
			out.pageOut, err = page("diagnostics", items, in.Cursor)
			if len(items) == 0 {
				out.Text = "There are no diagnostics.\n"
			}
			return err
		})
		return out, err
	})
}

// word returns the severity, message and code of a diagnostic in one line.
func (d diagnostic) word() string {
	message := strings.Join(strings.Fields(d.Message), " ")
	severity := severities[1]
	if d.Severity > 0 && d.Severity < len(severities) {
		severity = severities[d.Severity]
	}
	code := strings.Trim(string(d.Code), `"`)
	if code != "" && code != "null" && !strings.HasPrefix(code, "{") {
		severity += " " + code
	}
	const most = 400
	if len(message) > most {
		message = strings.ToValidUTF8(message[:most], "") + "…"
	}
	return severity + ": " + message
}

// diagnostics returns the diagnostics of the content that the server was given.
func (s *server) diagnostics(ctx context.Context, f *file) ([]diagnostic, error) {
	switch {
	case s.kind.tsserver:
		return s.compilerDiagnostics(ctx, f)
	case len(s.caps.DiagnosticProvider) > 0 && string(s.caps.DiagnosticProvider) != "null" &&
		string(s.caps.DiagnosticProvider) != "false":
		var report struct {
			Items []diagnostic `json:"items"`
		}
		err := s.callServer(ctx, "textDocument/diagnostic",
			map[string]any{"textDocument": textDocument{URI: uriOf(f.path)}}, &report)
		return report.Items, err
	}
	return s.publishedFor(ctx, f)
}

// publishedFor waits until the server has published diagnostics for the version of the document that it has now.
func (s *server) publishedFor(ctx context.Context, f *file) ([]diagnostic, error) {
	d := &s.documents
	d.mu.Lock()
	version := 0
	if doc := d.open[uriOf(f.path)]; doc != nil {
		version = doc.version
	}
	d.mu.Unlock()
	limit := time.NewTimer(publishWait)
	defer limit.Stop()
	var quiet <-chan time.Time
	for {
		one, changed := s.published.latest(f.path)
		if one.count > 0 &&
			(one.Version == nil && one.count >= version || one.Version != nil && *one.Version >= version) {
			quiet = time.After(publishQuiet)
		}
		select {
		case <-changed:
		case <-quiet:
			return one.Diagnostics, nil
		case <-limit.C:
			return nil, tool.Refuse(tool.CodeTimeout, "the language server reported nothing about %s in %v",
				f.place.Path, publishWait)
		case <-s.conn.Done():
			return nil, s.failed(errFailed)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// compilerDiagnostics asks the TypeScript compiler below the language server.
func (s *server) compilerDiagnostics(ctx context.Context, f *file) ([]diagnostic, error) {
	var all []diagnostic
	for _, command := range []string{"syntacticDiagnosticsSync", "semanticDiagnosticsSync"} {
		var answer struct {
			Body []struct {
				Start, End struct{ Line, Offset int }
				Text       string
				Code       json.RawMessage
				Category   string
			}
		}
		err := s.callServer(ctx, "workspace/executeCommand", map[string]any{
			"command": "typescript.tsserverRequest", "arguments": []any{command, map[string]any{"file": f.path}},
		}, &answer)
		if err != nil {
			return nil, err
		}
		for _, d := range answer.Body {
			severity := map[string]int{"error": 1, "warning": 2, "suggestion": 4}[d.Category]
			all = append(all, diagnostic{
				Range: span{
					position{d.Start.Line - 1, d.Start.Offset - 1},
					position{d.End.Line - 1, d.End.Offset - 1},
				},
				Severity: max(severity, 1), Code: d.Code, Source: "typescript", Message: d.Text,
			})
		}
	}
	return all, nil
}
