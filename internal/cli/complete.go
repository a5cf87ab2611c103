package cli

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/modules/standard"
)

// moduleNames completes the modules that a command takes as arguments.
func moduleNames(_ *cobra.Command, named []string, begin string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, g := range standard.Modules(standard.Deps{}) {
		if strings.HasPrefix(g.Name, begin) && !slices.Contains(named, g.Name) {
			names = append(names, g.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// toolNames completes the tool of a command with the tools of the server that the command line names, and then its
// arguments.
func (t *target) toolNames(w Environment) cobra.CompletionFunc {
	return func(c *cobra.Command, words []string, begin string) ([]string, cobra.ShellCompDirective) {
		if len(words) > 0 && c.Name() != "call" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		quiet := w
		quiet.Err = io.Discard
		lists := *t
		lists.lists = true
		all, err := lists.allTools(c, quiet)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, one := range all {
			switch {
			case len(words) == 0 && strings.HasPrefix(one.Name, begin):
				names = append(names, one.Name+"\t"+printable(sentence(one.Description)))
			case len(words) > 0 && one.Name == words[0]:
				for _, p := range one.Input.Properties {
					if key := p.Name + "="; strings.HasPrefix(key, begin) {
						names = append(names, key)
					}
				}
				return names, cobra.ShellCompDirectiveNoSpace
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeModules completes --modules, a list with commas.
func completeModules(c *cobra.Command) {
	c.RegisterFlagCompletionFunc(
		"modules",
		func(c *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
			last := strings.LastIndexByte(begin, ',') + 1
			names, directive := moduleNames(c, strings.Split(begin[:last], ","), begin[last:])
			for i := range names {
				names[i] = begin[:last] + names[i]
			}
			return names, directive | cobra.ShellCompDirectiveNoSpace
		},
	)
}

// completeContext completes --context with the contexts of the settings and those that commands created.
func completeContext(c *cobra.Command, w Environment) {
	c.RegisterFlagCompletionFunc(
		"context",
		func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return contextNames(w), cobra.ShellCompDirectiveNoFileComp
		},
	)
}

func contextNames(w Environment) []string {
	var names []string
	if l, err := config.Load(w.Getenv, ""); err == nil {
		for _, c := range l.Contexts {
			names = append(names, c.Name)
		}
	}
	quiet := w
	quiet.Err = io.Discard
	withContexts(quiet, func(b *contextstore.Store, _ config.Config, _ []contextstore.Record) error {
		for _, r := range b.Current().Records {
			names = append(names, r.Name)
		}
		return nil
	})
	return names
}
