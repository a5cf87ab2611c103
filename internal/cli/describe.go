package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"gatehouse/internal/mcp/client"
)

// listTools prints one line per tool.
func listTools(out io.Writer, all []client.Tool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, t := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\n", printable(t.Name), effect(t), printable(sentence(t.Description)))
	}
	return w.Flush()
}

// effect returns what a tool does, in a word.
func effect(t client.Tool) string {
	is := func(p *bool, otherwise bool) bool {
		if p == nil {
			return otherwise
		}
		return *p
	}
	switch a := t.Annotations; {
	case is(a.ReadOnly, false):
		return "reads"
	case is(a.Destructive, true):
		return "destroys"
	}
	return "writes"
}

// effectOf describes the same in a sentence.
var effectOf = map[string]string{
	"reads":    "changes nothing",
	"writes":   "adds or changes data without overwriting any",
	"destroys": "may overwrite or remove existing data",
}

// sentence returns the first sentence of a text.
func sentence(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if i := strings.Index(s, ". "); i >= 0 {
		return s[:i+1]
	}
	return s
}

// describeTool prints the description of one tool: its arguments, its effect and an example. flags are those of
// the example.
func describeTool(out io.Writer, t client.Tool, flags []string) error {
	title := t.Name
	if t.Title != "" {
		title += ": " + t.Title
	}
	fmt.Fprintf(
		out,
		"%s\n\n%s\n\nIt %s.\n\nArguments:\n",
		printable(title),
		printable(t.Description),
		effectOf[effect(t)],
	)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range t.Input.Properties {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", p.Name, strings.Join(traits(t.Input, p), ", "), printable(p.Description))
	}
	if len(t.Input.Properties) == 0 {
		fmt.Fprintln(w, "  none")
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nExample:\n  %s\n", printable(exampleOf(t, flags)))
	return err
}

// traits returns the type of an argument and whether it can be left out.
func traits(s client.Schema, p client.Property) []string {
	all := []string{kind(p.Schema)}
	if len(p.Enum) > 0 {
		all[0] = choices(p.Enum)
	}
	switch {
	case slices.Contains(s.Required, p.Name):
		all = append(all, "required")
	case len(p.Default) > 0:
		all = append(all, "default "+string(p.Default))
	}
	return all
}

func kind(s client.Schema) string {
	if s.Items != nil {
		return "list of " + kind(*s.Items)
	}
	if len(s.Type) == 0 {
		return "anything"
	}
	return strings.Join(s.Type, " or ")
}

func choices(enum []any) string {
	var all []string
	for _, e := range enum {
		all = append(all, fmt.Sprint(e))
	}
	return strings.Join(all, "|")
}

// showResult prints the result of a tool: its text, or its structured content as indented JSON. It names other
// blocks on stderr. The fields that follow a tool's text also go to stderr, because a program that reads the
// output from a pipe would read them as a part of the text.
func showResult(out, stderr io.Writer, r *client.Result) error {
	if len(r.Structured) > 0 && !hasProduct(r) {
		return printJSON(out, r.Structured)
	}
	product := len(r.Structured) > 0 || r.Meta.Fields != nil
	for i, c := range r.Content {
		to := out
		none := len(r.Content) == 1 && r.Meta.Fields != nil &&
			strings.HasPrefix(c.Text, "\n[") // an empty text is not sent
		if (i > 0 || none) && product && c.Type == "text" {
			to, c.Text = stderr, strings.TrimPrefix(c.Text, "\n")
		}
		if err := showBlock(to, stderr, c); err != nil {
			return err
		}
	}
	return nil
}

// hasProduct reports whether the text is more than the structured content as JSON: a tool that produces text sends
// that text unchanged.
func hasProduct(r *client.Result) bool {
	return slices.ContainsFunc(r.Content, func(c client.Content) bool {
		return c.Type != "text" || (c.Text != "" && !sameJSON(c.Text, r.Structured))
	})
}

func sameJSON(text string, raw json.RawMessage) bool {
	var a, b any
	if json.Unmarshal([]byte(text), &a) != nil || json.Unmarshal(raw, &b) != nil {
		return false
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

func showBlock(out, stderr io.Writer, c client.Content) (err error) {
	switch {
	case c.Type == "text":
		err = printLine(out, c.Text)
	case c.Type == "resource_link":
		err = printLine(out, c.URI)
	case c.Resource != nil && c.Resource.Blob == nil:
		err = printLine(out, c.Resource.Text)
	case c.Resource != nil:
		_, err = fmt.Fprintf(
			stderr,
			"[gatehouse] not shown: %s, %s, %d bytes\n",
			c.Resource.URI,
			c.Resource.MIME,
			len(c.Resource.Blob),
		)
	default:
		_, err = fmt.Fprintf(stderr, "[gatehouse] not shown: %s, %s, %d bytes\n", c.Type, c.MIME, len(c.Data))
	}
	return err
}

// printLine prints a text and ends its last line.
func printLine(out io.Writer, s string) error {
	if !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	_, err := io.WriteString(out, s)
	return err
}

// printJSON prints raw JSON indented, and keeps numbers and order unchanged.
func printJSON(out io.Writer, raw json.RawMessage) error {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err := out.Write(b.Bytes())
	return err
}
