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

// effect is what a tool does to the world, in a word.
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

// effectOf says the same in a sentence.
var effectOf = map[string]string{
	"reads":    "changes nothing",
	"writes":   "adds or changes, and overwrites nothing",
	"destroys": "may overwrite or remove what is there",
}

// sentence is the first sentence of a text.
func sentence(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if i := strings.Index(s, ". "); i >= 0 {
		return s[:i+1]
	}
	return s
}

// describeTool prints everything about one tool that helps to call it. flags
// are those of the example.
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

// traits are the type of an argument and whether it can be left out.
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

// showResult prints what a tool gave back: its text, or its structure as
// readable JSON. Blocks that are neither are named on stderr. The facts that
// follow a tool's product go to stderr, because a pipe would take them for a
// part of it.
func showResult(out, stderr io.Writer, r *client.Result) error {
	if len(r.Structured) > 0 && !hasProduct(r) {
		return printJSON(out, r.Structured)
	}
	product := len(r.Structured) > 0 || r.Meta.Fields != nil
	for i, c := range r.Content {
		to := out
		none := len(r.Content) == 1 && r.Meta.Fields != nil &&
			strings.HasPrefix(c.Text, "\n[") // an empty product is left out
		if (i > 0 || none) && product && c.Type == "text" {
			to, c.Text = stderr, strings.TrimPrefix(c.Text, "\n")
		}
		if err := showBlock(to, stderr, c); err != nil {
			return err
		}
	}
	return nil
}

// hasProduct reports whether the text is more than the structure as JSON: a
// tool whose product is text sends that as it is.
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

// printJSON prints raw JSON for people: indented, numbers and order as they
// came.
func printJSON(out io.Writer, raw json.RawMessage) error {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err := out.Write(b.Bytes())
	return err
}
