package cli

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages"
	"gatehouse/internal/packages/catalog"
)

// parseSets parses the values of --set, NAME=VALUE each, of which a name can be repeated.
func parseSets(values []string) (map[string][]string, error) {
	all := map[string][]string{}
	for _, one := range values {
		name, value, ok := strings.Cut(one, "=")
		if !ok {
			return nil, usagef("--set %s: expected NAME=VALUE", one)
		}
		all[name] = append(all[name], value)
	}
	return all, nil
}

// configureBundle gives a bundle the values of its configuration: those of --set, and for what else
// it requires those that the user enters at the terminal. Sensitive ones are kept secret.
func (f *addFlags) configureBundle(w Environment, wish *packages.Wish) error {
	values, err := parseSets(f.sets)
	if err != nil {
		return err
	}
	wish.Config = values
	if !wish.Source.FromPath() {
		return nil // the host reads its manifest when it has it
	}
	m, err := packages.ReadBundle(wish.Source.From)
	if err != nil {
		return err
	}
	for _, name := range m.Missing(values) {
		if !isTerminal(w.In) {
			return usagef("the bundle requires %s: give --set NAME=VALUE for each",
				strings.Join(m.Missing(values), ", "))
		}
		field := m.Fields[name]
		fmt.Fprintf(w.Err, "[gatehouse] %s: %s\n", printable(cmp.Or(field.Title, name)),
			printable(cmp.Or(field.Description, field.Type)))
		value, err := enterValue(w, name, field.Sensitive, field.Type == "directory" || field.Type == "file")
		if err != nil {
			return err
		}
		values[name] = []string{value}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !m.Fields[name].Sensitive {
			continue
		}
		for i, value := range values[name] {
			if refers, err := secret.Names(value); err != nil || len(refers) > 0 {
				continue
			}
			stored := packages.SecretName(wish.ID, name)
			if wish.Secrets == nil {
				wish.Secrets = map[string]secret.Text{}
			}
			wish.Secrets[stored], values[name][i] = secret.New(value), packages.SecretReference(stored)
		}
	}
	if err := m.CheckValues(values); err != nil {
		return &usageError{err}
	}
	return nil
}

// enterValue asks for a value at the terminal.
func enterValue(w Environment, name string, sensitive, path bool) (string, error) {
	if sensitive {
		value, err := readSecret(w, name)
		return value.Reveal(), err
	}
	fmt.Fprintf(w.Err, "Value of %s: ", printable(name))
	line, err := bufio.NewReader(w.In).ReadString('\n')
	line = strings.TrimSpace(line)
	if err == nil && path && line != "" {
		line, err = filepath.Abs(line)
	}
	return line, err
}

// isDescription reports whether a target is a server.json.
func isDescription(target string) bool {
	info, err := os.Stat(target)
	return err == nil && info.Mode().IsRegular() && strings.EqualFold(filepath.Ext(target), ".json")
}

// described makes the package that a server.json describes: a form that this machine can install,
// or else the address at which it runs.
func (f *addFlags) described(
	w Environment, id, file string, words []string, env map[string]string,
) (packages.Wish, error) {
	e, err := catalog.ReadServer(file)
	if err != nil {
		return packages.Wish{}, err
	}
	e.Kind, e.From = catalog.Files, file
	return f.fromEntry(w, id, e, words, env)
}
