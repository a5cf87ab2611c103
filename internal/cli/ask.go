package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/term"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/mcp/client"
)

// asker returns a function that asks the user at the terminal, or nil if standard input is not a terminal. An
// approval requires the passphrase, if one is set.
func asker(w Environment, f config.Folders) client.Ask {
	in, ok := w.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil
	}
	lines := bufio.NewReader(in)
	return func(q client.Question) (string, map[string]any) {
		fmt.Fprintf(w.Err, "[gatehouse] %s\n", displaytext.Text(q.Message))
		content := map[string]any{}
		for _, p := range q.Form.Properties {
			v, action := askOne(w.Err, lines, p, slices.Contains(q.Form.Required, p.Name))
			if action != "accept" {
				return action, nil
			}
			if v != nil {
				content[p.Name] = v
			}
		}
		proof, err := approvals.LoadProof(app.ProofFile(f))
		if errors.Is(err, approvals.ErrNoProof) {
			return "accept", content
		}
		if err == nil {
			var pass []byte
			if pass, err = readPassphrase(w, in, "Passphrase for approvals: "); err == nil && !proof.Knows(pass) {
				err = approvals.ErrPassphrase
			}
		}
		if err != nil {
			fmt.Fprintf(w.Err, "[gatehouse] %v\n", err)
			return "decline", nil
		}
		return "accept", content
	}
}

// askOne asks for one value of a form. Answering no to a question that only asks for consent declines the whole
// form.
func askOne(to io.Writer, lines *bufio.Reader, p client.Property, needed bool) (v any, action string) {
	called := p.Title
	if called == "" {
		called = p.Name
	}
	for range 3 {
		hint := ""
		if slices.Contains(p.Type, "boolean") {
			hint = " [y/N]"
		}
		fmt.Fprintf(to, "%s%s ", displaytext.Line(called), hint)
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil, "cancel"
		}
		line = strings.TrimSpace(line)
		switch {
		case slices.Contains(p.Type, "boolean"):
			if l := strings.ToLower(line); l == "y" || l == "yes" {
				return true, "accept"
			}
			return nil, "decline"
		case line == "" && !needed:
			return nil, "accept"
		case line == "":
			return nil, "cancel"
		case slices.Contains(p.Type, "integer"), slices.Contains(p.Type, "number"):
			if n, err := strconv.ParseFloat(line, 64); err == nil {
				return n, "accept"
			}
			fmt.Fprintln(to, "That is not a number.")
		default:
			return line, "accept"
		}
	}
	return nil, "cancel"
}

// readPassphrase reads a line without echoing it.
func readPassphrase(w Environment, in *os.File, prompt string) ([]byte, error) {
	fmt.Fprint(w.Err, prompt)
	b, err := term.ReadPassword(int(in.Fd()))
	fmt.Fprintln(w.Err)
	return bytes.TrimRight(b, "\r\n"), err
}

// openTerminal opens the terminal of this process, even if its standard input is redirected.
func openTerminal() (*os.File, error) {
	name := "/dev/tty"
	if os.PathSeparator == '\\' {
		name = "CONIN$"
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("the passphrase can be read only from a terminal, and this process has none: %w", err)
	}
	return f, nil
}
