package cli

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/cluster"
)

func clusterCommand(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "cluster",
		Short: "Show the nodes of a cluster, let others join, and leave",
		Long: `Show the nodes of a cluster, let others join, and leave. A host is a node if it is served
with --cluster; the commands are for the node that runs on this machine.`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(clusterStatus(w), clusterJoinToken(w), clusterLeave(w))
	return c
}

func clusterStatus(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "List the nodes",
		Example: `  gatehouse cluster status`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			raw, err := cluster.Visit(c.Context(), app.ClusterFolder(l.Folders.Data), app.StatusTopic, nil)
			if err != nil {
				return err
			}
			var nodes []cluster.Peer
			if err := json.Unmarshal(raw, &nodes); err != nil {
				return err
			}
			out := tabwriter.NewWriter(w.Out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(out, "NODE\tMACHINE\tSTATE\tVERSION\tCLUSTER ADDRESS\tCLIENTS\tSINCE")
			for _, n := range nodes {
				state := "alive"
				if !n.Alive {
					state = "silent"
				}
				fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", n.ID, n.Host, state, n.Version, n.Cluster, n.Address,
					n.Started.Format(time.RFC3339))
			}
			return out.Flush()
		},
	}
}

func clusterJoinToken(w Environment) *cobra.Command {
	var valid time.Duration
	c := &cobra.Command{
		Use:   "join-token",
		Short: "Print a token with which a node can join",
		Long: `Print a token with which a node can join the cluster of this machine's node until
it expires. Give it to the new node in a file, with --join-token-file. The node that
joins gets the key of the cluster's certificates, so keep the token secret.`,
		Example: `  gatehouse cluster join-token > token
  gatehouse cluster join-token --valid 10m > token`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if valid <= 0 || valid > 7*24*time.Hour {
				return usagef("--valid %v: expected more than 0 and at most a week", valid)
			}
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			authority, err := cluster.OpenAuthority(app.ClusterFolder(l.Folders.Data))
			if err != nil {
				return err
			}
			token, err := authority.JoinToken(valid)
			if err == nil {
				_, err = w.Out.Write(token)
			}
			return err
		},
	}
	c.Flags().DurationVar(&valid, "valid", time.Hour, "how long a node can join with it")
	return c
}

func clusterLeave(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "leave",
		Short: "Make this machine a host without a cluster",
		Long: `Make this machine a host without a cluster, which keeps the users, tokens and
approvals that its node has now. Stop the host before. The other nodes go on without
it and show it as silent.`,
		Example: `  gatehouse cluster leave`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			old, err := app.LeaveCluster(c.Context(), l.Folders)
			if err == nil {
				fmt.Fprintf(w.Out, "This machine is no node any more. What the node had besides is in %s; remove it.\n", old)
			}
			return err
		},
	}
}
